#!/bin/bash
# ctest: TIMEOUT 300
# Runs the programs of rdma-core with many clients, and with large messages.
. "$(dirname "$0")/lib.sh"
need rping ucmatose rdma_server rdma_client ibv_rc_pingpong

# server COMMAND...: starts the command in the background; its pid is then in $server, and its output in $work/server.
server() {
  start run -- "$@" >"$work/server" 2>&1 &
  server=$!
}
server_ends() { wait $server || fail "$1: the server: exit $?: $(tail -5 "$work/server")"; }
client() {  # client NAME COMMAND...
  local name=$1
  shift
  verbena run -- timeout 60 "$@" >"$work/client" 2>&1 ||
    fail "$name: exit $?: $(tail -5 "$work/client") server: $(tail -5 "$work/server")"
}

# A persistent server serves twenty clients in a row, and then eight at once, five times.
server rping -s -P -v
wait_listening 7174
for number in $(seq 20); do
  client "rping $number in a row" rping -c -a 127.0.0.1 -C 10 -V
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

server ucmatose -c 100
wait_listening 7471
client ucmatose ucmatose -c 100 -s 127.0.0.1
server_ends ucmatose
for side in server client; do
  grep -q 'return status 0' "$work/$side" || fail "ucmatose: the $side: $(tail -3 "$work/$side")"
done

server rdma_server
wait_listening 7471
client rdma_client rdma_client -s 127.0.0.1
server_ends rdma_client
for side in server client; do
  grep -q "rdma_$side: end 0" "$work/$side" || fail "rdma_$side: $(cat "$work/$side")"
done

listens_tcp() { [ -n "$(ss -tlnH "sport = :$1")" ]; }
for mode in "" -e; do
  for bytes in 4096 1048576; do
    rounds=$((bytes > 4096 ? 20 : 200))
    what="ibv_rc_pingpong of $bytes bytes ${mode:-polling}"
    server ibv_rc_pingpong -g 0 -n $rounds -s "$bytes" $mode
    until_true 20 listens_tcp 18515 || fail "$what: no server: $(cat "$work/server")"
    client "$what" ibv_rc_pingpong -g 0 -n $rounds -s "$bytes" $mode 127.0.0.1
    server_ends "$what"
    grep -q "$rounds iters in" "$work/client" || fail "$what: $(cat "$work/client")"
  done
done
