#!/bin/bash
# Runs Debian's programs with shared receive queues, with extended queue pairs and completion queues, and with on-demand
# paging.
. "$(dirname "$0")/lib.sh"
need ibv_srq_pingpong ibv_rc_pingpong ss

listens_tcp() { ss -tlnH "sport = :$1" | grep -q .; }

# run_pair PORT PROGRAM ARGUMENT...: runs a program as a server, and as the client of that server.
run_pair() {
  local port=$1 server
  shift
  start run -- timeout 60 "$@" -p "$port" >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp "$port" || fail "$*: no server: $(cat "$work/server")"
  verbena run -- timeout 60 "$@" -p "$port" 127.0.0.1 >"$work/client" 2>&1 ||
    fail "$*: the client's exit $?: $(tail -3 "$work/client")"
  wait $server || fail "$*: the server's exit $?: $(tail -3 "$work/server")"
  echo "$*: ok"
}
index=$(verbena run -- ibv_devinfo -v | sed -n 's/^[[:space:]]*GID\[ *\([0-9]*\)\]:[[:space:]]*::ffff:127.*/\1/p')
[ -n "$index" ] || fail "no GID of 127.0.0.1"

run_pair 18601 ibv_srq_pingpong -g "$index" -n 300 -c
run_pair 18602 ibv_srq_pingpong -g "$index" -n 300 -c -e -q 5
run_pair 18603 ibv_rc_pingpong -g "$index" -n 300 -c -N
run_pair 18604 ibv_rc_pingpong -g "$index" -n 300 -c -t
cp "$work/client" "$work/times"
run_pair 18605 ibv_rc_pingpong -g "$index" -n 300 -c -o
run_pair 18606 ibv_rc_pingpong -g "$index" -n 300 -c -o -P
run_pair 18607 ibv_rc_pingpong -g "$index" -n 300 -c -O
# The time stamps at the end of the output show that extended queues were used.
grep -q 'completion clock' "$work/times" || fail "no time stamps: $(cat "$work/times")"

# A refused batch of ibv_wr_*() has no effect.
verbena run -- timeout 60 "$VB_PREFIX/tests/programs/refused_batches" >"$work/out" 2>&1 ||
  fail "refused_batches: exit $?: $(cat "$work/out")"
[ "$(grep -c '^good ' "$work/out")" -eq 9 ] || fail "refused_batches: $(cat "$work/out")"
