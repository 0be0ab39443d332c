#!/bin/bash
# ctest: SERIAL
# Two programs that poll share one processor.  Each must yield to the other one instead of polling until its time slice
# ends.  Then a round trip takes tens of microseconds, and not one or two time slices.
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong taskset ss

cpu=$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')
server_listens() { [ -n "$(ss -Hltn 'sport = :18515')" ]; }
TIMEFORMAT='%U %S'
# run_rounds ROUNDS: runs a server and a client.  Sets "took" to the client's processor time in seconds.  Unlike elapsed
# time, processor time does not depend on other programs.
run_rounds() {
  local server
  start run -- timeout 150 taskset -c "$cpu" ibv_rc_pingpong -g 0 -s 64 -n "$1" >"$work/server" 2>&1 &
  server=$!
  until_true 60 server_listens || fail "the server does not listen: $(cat "$work/server")"
  { time verbena run -- timeout 100 taskset -c "$cpu" ibv_rc_pingpong -g 0 -s 64 -n "$1" 127.0.0.1 \
    >"$work/client" 2>&1; } 2>"$work/time" || fail "exit $?: $(cat "$work/client" "$work/server")"
  wait $server || fail "server: exit $?: $(cat "$work/server")"
  grep -q "^$1 iters" "$work/client" || fail "$(cat "$work/client")"
  took=$(awk '{ print $1 + $2 }' "$work/time")
}

# The time of one round is the time that the programs need to start and to end.
run_rounds 1
start_took=$took
rounds=1000
run_rounds $rounds
result="$rounds rounds took $took s on the processor, and one round took $start_took s"
# A further round must take less than 1.5 ms, which is less than a time slice.
awk "BEGIN { exit !($took - $start_took < 1.5) }" || fail "$result: $(cat "$work/client")"
echo "$result"
