#!/bin/bash
# Runs both ends of Debian's perftest and ibv_uc_pingpong with atomics and UC, which other tests rarely use.  Then runs
# tests/programs/operations.c, which checks the results of atomics and UC, and operations that no Debian program uses.
. "$(dirname "$0")/lib.sh"
need ib_atomic_bw ib_atomic_lat ib_send_lat ib_write_lat ib_write_bw ibv_uc_pingpong

listens_tcp() { [ -n "$(ss -tlnH "sport = :$1")" ]; }

# run_pair NAME PORT PATTERN COMMAND...: runs COMMAND as a server, and then as its client.  Both must succeed, and the
# client must print the pattern.  The ends exchange addresses by TCP on PORT.
run_pair() {
  local name=$1 port=$2 pattern=$3 server
  shift 3
  start run -- timeout 60 "$@" >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp "$port" || fail "$name: no server: $(cat "$work/server")"
  verbena run -- timeout 60 "$@" 127.0.0.1 >"$work/client" 2>&1 ||
    fail "$name: exit $?: $(tail -5 "$work/client") server: $(tail -5 "$work/server")"
  wait $server || fail "$name: the server: exit $?: $(tail -5 "$work/server")"
  grep -qE "$pattern" "$work/client" || fail "$name: $(cat "$work/client")"
}

# These patterns match perftest's line of results, which begins with the size and the number of operations.
for kind in CMP_AND_SWAP FETCH_AND_ADD; do
  run_pair "ib_atomic_lat $kind" 18515 '^ *8 +200 ' ib_atomic_lat -F -x 0 -A $kind -n 200
  run_pair "ib_atomic_bw $kind" 18515 '^ *8 +2000 ' ib_atomic_bw -F -x 0 -A $kind -n 2000
  run_pair "ib_atomic_bw $kind, one at a time" 18515 '^ *8 +200 ' ib_atomic_bw -F -x 0 -o 1 -A $kind -n 200
  run_pair "ib_atomic_bw $kind, both ways, four QPs" 18515 '^ *8 +[0-9]+ ' \
    ib_atomic_bw -F -x 0 -b -q 4 -A $kind -n 500
done

# UC does not send lost messages again.  So these programs wait for each message, or send few messages.
for mode in "" -e; do
  run_pair "ibv_uc_pingpong ${mode:-polling}" 18515 '1000 iters in' ibv_uc_pingpong -g 0 -n 1000 $mode
done
run_pair "ibv_uc_pingpong, small" 18515 '500 iters in' ibv_uc_pingpong -g 0 -n 500 -s 1 -m 256
run_pair "ib_send_lat UC" 18515 '^ *64 +500 ' ib_send_lat -F -x 0 -c UC -s 64 -n 500
run_pair "ib_write_lat UC" 18515 '^ *64 +500 ' ib_write_lat -F -x 0 -c UC -s 64 -n 500
run_pair "ib_write_bw UC" 18515 '^ *1024 +1000 ' ib_write_bw -F -x 0 -c UC -s 1024 -n 1000

verbena run -- timeout 60 "$VB_PREFIX/tests/programs/operations" >"$work/out" 2>&1 ||
  fail "operations: exit $?: $(cat "$work/out")"
[ "$(cat "$work/out")" = "$(printf 'good %s\n' rc_atomics atomic_write window1 window2 invalidate uc drained)" ] ||
  fail "operations: $(cat "$work/out")"
