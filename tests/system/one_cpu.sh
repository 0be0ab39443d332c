#!/bin/bash
# ctest: TIMEOUT 300
# Two programs that poll share one processor.  Each must yield to the other one instead of polling until its time slice
# ends.  Then a round trip takes tens of microseconds, and not one or two time slices.
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong taskset ss

rounds=1000
cpu=$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')
start run -- timeout 150 taskset -c "$cpu" ibv_rc_pingpong -g 0 -s 64 -n $rounds >"$work/server" 2>&1 &
server=$!
server_listens() { [ -n "$(ss -Hltn 'sport = :18515')" ]; }
until_true 60 server_listens || fail "the server does not listen: $(cat "$work/server")"
TIMEFORMAT='%U %S'
{ time verbena run -- timeout 100 taskset -c "$cpu" ibv_rc_pingpong -g 0 -s 64 -n $rounds 127.0.0.1 \
  >"$work/client" 2>&1; } 2>"$work/time" || fail "exit $?: $(cat "$work/client" "$work/server")"
wait $server || fail "server: exit $?: $(cat "$work/server")"
grep -q "^$rounds iters" "$work/client" || fail "$(cat "$work/client")"
read -r user system <"$work/time"
# A round must take less than 1.5 ms of the client's processor time, which is less than a time slice.  Unlike elapsed
# time, processor time does not depend on other programs.
awk "BEGIN { exit !($user + $system < 1.5) }" ||
  fail "$rounds rounds took $user + $system s on the processor: $(cat "$work/client")"
echo "$rounds rounds took $user + $system s on the processor"
