#!/bin/bash
# Runs programs of rdma-core with many clients, and with large messages.
. "$(dirname "$0")/lib.sh"
need rping ucmatose rdma_server rdma_client ibv_rc_pingpong

# start_server COMMAND...: starts the command in the background, and sets $server to its pid.  Its output goes to
# $work/server.
start_server() {
  start run -- "$@" >"$work/server" 2>&1 &
  server=$!
}
# wait_server NAME: waits until the server ends, which must be with exit code 0.
wait_server() { wait $server || fail "$1: the server: exit $?: $(tail -5 "$work/server")"; }
run_client() {  # run_client NAME COMMAND...
  local name=$1
  shift
  verbena run -- timeout 60 "$@" >"$work/client" 2>&1 ||
    fail "$name: exit $?: $(tail -5 "$work/client") server: $(tail -5 "$work/server")"
}

# A persistent server must serve twenty clients one after the other, and then five times eight clients at once.
start_server rping -s -P -v
wait_listening 7174
for number in $(seq 20); do
  run_client "rping $number in a row" rping -c -a 127.0.0.1 -C 10 -V
done
for round in $(seq 5); do
  clients=()
  for number in $(seq 8); do
    start run -- timeout 60 rping -c -a 127.0.0.1 -C 10 -V >"$work/client$number" 2>&1 &
    clients+=($!)
  done
  for number in $(seq 8); do
    wait "${clients[number - 1]}" ||
      fail "round $round, client $number of 8: exit $?: $(cat "$work/client$number") server: $(tail -3 "$work/server")"
  done
done
! gone $server || fail "the persistent server has ended: $(tail -5 "$work/server")"
! grep -aE 'Invalid argument|failed|error' "$work/server" || fail "the persistent server reports an error"
kill $server
wait $server 2>/dev/null || true

start_server ucmatose -c 100
wait_listening 7471
run_client ucmatose ucmatose -c 100 -s 127.0.0.1
wait_server ucmatose
for side in server client; do
  grep -q 'return status 0' "$work/$side" || fail "ucmatose: the $side: $(tail -3 "$work/$side")"
done

start_server rdma_server
wait_listening 7471
run_client rdma_client rdma_client -s 127.0.0.1
wait_server rdma_client
for side in server client; do
  grep -q "rdma_$side: end 0" "$work/$side" || fail "rdma_$side: $(cat "$work/$side")"
done

listens_tcp() { [ -n "$(ss -tlnH "sport = :$1")" ]; }
for mode in "" -e; do
  for bytes in 4096 1048576; do
    rounds=$((bytes > 4096 ? 20 : 200))
    what="ibv_rc_pingpong of $bytes bytes ${mode:-polling}"
    start_server ibv_rc_pingpong -g 0 -n $rounds -s "$bytes" $mode
    until_true 20 listens_tcp 18515 || fail "$what: no server: $(cat "$work/server")"
    run_client "$what" ibv_rc_pingpong -g 0 -n $rounds -s "$bytes" $mode 127.0.0.1
    wait_server "$what"
    grep -q "$rounds iters in" "$work/client" || fail "$what: $(cat "$work/client")"
  done
done
