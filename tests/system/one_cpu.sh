#!/bin/bash
# ctest: TIMEOUT 90
# Two programs that poll share one processor: they let each other run, instead of spinning until the
# scheduler takes it away, which would take minutes here.
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong taskset ss

rounds=10000
cpu=$(taskset -cp $$ | sed 's/.*: \([0-9]*\).*/\1/')
start run -- timeout 60 taskset -c "$cpu" ibv_rc_pingpong -g 0 -s 64 -n $rounds >"$work/server" 2>&1 &
server=$!
waits() { [ -n "$(ss -Hltn 'sport = :18515')" ]; }
until_true 20 waits || fail "the server does not listen: $(cat "$work/server")"
verbena run -- timeout 40 taskset -c "$cpu" ibv_rc_pingpong -g 0 -s 64 -n $rounds 127.0.0.1 \
  >"$work/client" 2>&1 || fail "exit $?: $(cat "$work/client" "$work/server")"
wait $server || fail "server: exit $?: $(cat "$work/server")"
grep -q "^$rounds iters" "$work/client" || fail "$(cat "$work/client")"
grep "^$rounds iters" "$work/client"
