#!/bin/bash
# A server, a client and the agent must be three processes.  Each program must have its own QP, and no data may go
# through the agent.
. "$(dirname "$0")/lib.sh"
need rping

start run -- rping -s -P >"$work/server" 2>&1 &
server=$!
wait_listening 7174
start run -- rping -c -a 127.0.0.1 -C 1000000 >"$work/client" 2>&1 &
client=$!

two_qps_in_rts() { verbena ps >"$work/ps" && [ "$(grep -cE '[[:space:]]RC[[:space:]]+RTS[[:space:]]' "$work/ps")" -eq 2 ]; }
until_true 20 two_qps_in_rts || fail "not two connected QPs: $(verbena ps)"
grep -qE "^ *$server +rping.*RC +RTS" "$work/ps" || fail "the server has no QP: $(cat "$work/ps")"
grep -qE "^ *$client +rping.*RC +RTS" "$work/ps" || fail "the client has no QP: $(cat "$work/ps")"

agent=$(verbena agent status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["agent"]["pid"])')
[ "$agent" != "$server" ] && [ "$agent" != "$client" ] || fail "the agent is one of the programs"
readlink "/proc/$agent/exe" | grep -q verbenad || fail "pid $agent is not verbenad"
for pid in $server $client; do
  grep -q 'libverbena\.so\.0' "/proc/$pid/maps" || fail "libverbena is not loaded in $pid"
  [ -e "/proc/$pid" ] && grep -q 'verbena-qps' "/proc/$pid/maps" || fail "no QP table in $pid"
done

packets() { verbena agent status --json | python3 -c '
import json, sys
status = json.load(sys.stdin)["agent"]
counters = status["counters"]
print(counters["data_packets"])'; }
[ "$(packets)" -eq 0 ] || fail "the agent handled data packets"

# `verbena ps` must also show a stopped program.
stop_process $client
verbena ps | grep -qE "^ *$client +rping.*RC +RTS" || fail "a stopped program is not shown"
kill -CONT $client

kill $client
until_true 30 gone $client || fail "the client does not end"
[ "$(packets)" -eq 0 ] || fail "the agent handled data packets"
kill $server

# The command must report a failed write, here because the disk is full.
for command in "ps" "ps --json" "agent status" doctor --help --version; do
  # shellcheck disable=SC2086
  ! verbena $command >/dev/full 2>"$work/full" || fail "verbena $command >/dev/full: exit 0"
  grep -q 'cannot write to standard output: No space left on device' "$work/full" || fail "verbena $command: $(cat "$work/full")"
done
# Output to a file must have no escape sequences.
verbena ps >"$work/plain"
! grep -q "$(printf '\033')" "$work/plain" || fail "escape sequences in a file"
