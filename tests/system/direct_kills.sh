#!/bin/bash
# One program writes directly into the memory of another one.  One of them is killed or stopped at a random moment,
# which may be in the middle of a copy.  A writer without a target or without access must get an error.  In the target,
# ibv_dereg_mr() must return, and nothing may be written after that.  VB_ROUNDS sets the number of rounds of each kind
# (default 6).  VB_SEED determines the moments.
# The test sets no timeout, because scripts/soak runs many rounds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset VERBENA_LINK
need ss
program=$VB_PREFIX/tests/programs/regions
rounds=${VB_ROUNDS:-6}
seed=${VB_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$seed
export VERBENA_IDLE=3
echo "VB_SEED=$seed, $rounds rounds of each kind"

kind='' round=''
fail_round() { fail "VB_SEED=$seed, $kind, round $round: $*; server: $(tail -3 "$work/server"); client: $(cat "$work/client")"; }
# Sleeps for up to 59 ms, so that the next signal comes at a random moment.
sleep_random_time() { sleep "0.$(printf %03d $((RANDOM % 60)))"; }
# has_printed PROGRAM PATTERN: succeeds if the server or the client has printed the pattern.
has_printed() { grep -qs "$2" "$work/$1"; }

verbena run -- true
if [ "$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0)" -gt 0 ]; then
  skip "the kernel lets no process access the memory of another one (kernel.yama.ptrace_scope)"
fi
writes_directly() { verbena ps --counters --json | python3 -c '
import json, sys
sys.exit(0 if any(p["counters"].get("direct_writes", 0) > 10 for p in json.load(sys.stdin)["processes"]) else 1)'; }

# start_both: starts a server and a client, and waits for a random time after the first WRITE.
start_both() {
  : >"$work/client"
  : >"$work/server"
  rm -f "$work/input"
  mkfifo "$work/input"
  start run -- "$program" serve 7601 <"$work/input" >"$work/server" 2>&1 &
  server=$!
  exec 7>"$work/input"
  wait_listening 7601
  start run -- "$program" write 7601 >"$work/client" 2>&1 7>&- &
  client=$!
  until_true 20 has_printed client '^writing' || fail_round "the client does not write"
  sleep_random_time
}
end_both() {
  exec 7>&-
  kill -9 "$server" "$client" 2>/dev/null || true
  { wait "$server" "$client" || true; } 2>/dev/null
}

for kind in initiator target stopped; do
  slowest=0
  for round in $(seq "$rounds"); do
    start_both
    [ "$round" -gt 1 ] || until_true 30 writes_directly || fail_round "WRITEs go as packets"
    case $kind in
      initiator)
        kill -9 "$client"
        { wait "$client" || true; } 2>/dev/null
        until_true 30 has_printed server '^whole' || fail_round "the target does not report that its memory is unchanged"
        ;;
      target)
        kill -9 "$server"
        { wait "$server" || true; } 2>/dev/null
        until_true 30 has_printed client '^ended' || fail_round "the initiator gets no error"
        has_printed client 'ended: success' && fail_round "the initiator reports no error"
        ;;
      stopped)
        stop_process "$client"
        echo >&7
        sleep_random_time
        kill -CONT "$client"
        until_true 30 has_printed server '^back' || fail_round "ibv_dereg_mr() does not return"
        until_true 30 has_printed client '^ended: remote access error' || fail_round "the initiator does not lose its access"
        until_true 30 has_printed server '^whole' || fail_round "the target does not report that its memory is unchanged"
        ;;
    esac
    has_printed server '^changed' && fail_round "written after ibv_dereg_mr()"
    elapsed_ms=$(sed -n 's/^back after \([0-9]*\) ms/\1/p' "$work/server")
    [ "${elapsed_ms:-0}" -le "$slowest" ] || slowest=$elapsed_ms
    end_both
  done
  echo "$kind: ok, ibv_dereg_mr() took at most $slowest ms"
done

until_true 45 no_agent || fail "VB_SEED=$seed: the agent is still there: $(verbena agent status)"
check_nothing_left
