#!/bin/bash
# Kills a client or a server at a random moment with kill -9.  Some of them have a forked child that continues to run.
# The other side must notice it within 5 s, no program may hang, and no process, socket or file may remain.  VB_ROUNDS
# sets the number of rounds of each kind (default 6).  VB_SEED determines the moments, and a failure prints it.  The
# test sets no timeout, because scripts/soak runs many rounds.
. "$(dirname "$0")/lib.sh"
need rping ss
programs=$VB_PREFIX/tests/programs
rounds=${VB_ROUNDS:-6}
seed=${VB_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$seed
echo "VB_SEED=$seed, $rounds rounds of each kind"

kind= round=
fail_round() { fail "VB_SEED=$seed, $kind, round $round: $*; server: $(tail -3 "$work/server"); client: $(tail -3 "$work/client")"; }

export VERBENA_IDLE=3
# A program that reads from this pipe waits, because nobody writes to it.  The pipe has no end, because this shell can
# write to it.
mkfifo "$work/silence"
exec {silence}<>"$work/silence"
# Sleeps for up to 399 ms, so that the kill comes at a random moment.
sleep_random_time() { sleep "0.$(printf %03d $((RANDOM % 400)))"; }
milliseconds_since() { echo $((($(date +%s%N) - $1) / 1000000)); }

start_server() {
  case $kind in
    *rping*) start run -- rping -s >"$work/server" 2>&1 & port=7174 ;;
    *server-with-child) start run -- "$programs/echo" 7601 child >"$work/server" 2>&1 & port=7601 ;;
    *) start run -- "$programs/echo" 7601 >"$work/server" 2>&1 & port=7601 ;;
  esac
  server=$!
}
start_client() {
  case $kind in
    *rping*) start run -- rping -c -a 127.0.0.1 -C 100000000 -v >"$work/client" 2>&1 & ;;
    *client-with-child) start run -- "$programs/forks" 7601 outlive >"$work/client" 2>&1 <&"$silence" & ;;
    *) start run -- "$programs/echo" 7601 0 >"$work/client" 2>&1 & ;;
  esac
  client=$!
}
# Succeeds if the connection has been made.  Otherwise the other side may be at any earlier step when the victim dies.
connected() { grep -qsaE '^(connected|here|ping data)' "$work/client" "$work/server" || grep -qs '^child' "$work/client"; }
# children: prints the pids of the forked children.
children() { sed -sn 's/^child //p' "$work/server" "$work/client" 2>/dev/null || true; }

# The echo server continues after a client's death.  Its output shows whether it has noticed the death.
server_noticed() { ! grep -qs '^here' "$work/server" || grep -qE '^(gone|lost)' "$work/server"; }

# rping has a fault (rping.c, err3).  If DISCONNECTED comes before its main thread has seen ESTABLISHED, rping waits for
# a completion that never comes, and hangs with any RDMA stack.  The test accepts this, because rping got the event.
client_noticed() { gone "$client" || grep -qsa '^wait for CONNECTED state 10$' "$work/client"; }

for kind in rping-client rping-server client server client-with-child server-with-child; do
  for round in $(seq "$rounds"); do
    rm -f "$work/server" "$work/client"  # the output of the previous round
    start_server
    wait_listening $port
    start_client
    sleep_random_time
    limit_ms=5000
    connected || limit_ms=20000  # without a connection, the other side may still be starting
    case $kind in
      *client*) victim=$client other=$server ;;
      *) victim=$server other=$client ;;
    esac
    kill -9 "$victim"
    wait "$victim" 2>/dev/null || true
    start_time=$(date +%s%N)
    case $kind in
      rping-client) grep -qsa 'ping data' "$work/client" && { until_true 25 gone "$other" || fail_round "the server does not end"; } ;;
      *client*) until_true 25 server_noticed || fail_round "the server does not notice it" ;;
      *) until_true 25 client_noticed || fail_round "the client does not end" ;;
    esac || true
    elapsed_ms=$(milliseconds_since "$start_time")
    [ "$elapsed_ms" -lt $limit_ms ] || fail_round "the other side noticed it after $elapsed_ms ms"
    for pid in $other $(children); do kill -9 "$pid" 2>/dev/null || true; done
    wait "$other" 2>/dev/null || true
  done
  echo "$kind: ok"
done

until_true 45 no_agent || fail "VB_SEED=$seed: the agent is still there: $(verbena agent status)"
check_nothing_left
