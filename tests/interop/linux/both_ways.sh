#!/bin/bash
# Runs programs between Verbena and Linux's soft-RoCE, with the server on either side: over IPv4 and IPv6, with small
# and large packets, over a line that loses packets, and without a listener.  rping and ibv_rc_pingpong verify the data.
# Then tshark and an independent program check the captures.
#   VB_LOSSY_ROUNDS     rounds of rping with 2 % loss (default 10); some rounds take 2 s, the timeout of Linux
#   VB_CONNECTIONS      connections of cmtime (default 1000)
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need rping ucmatose cmtime rdma_client ibv_rc_pingpong

# pingpong SERVER MTU WHAT: runs ibv_rc_pingpong with the GIDs of $family.  It verifies the data (-c).  Both ends
# exchange their addresses by TCP over IPv4.
pingpong() {
  local client own other
  client=$([ "$1" = a ] && echo b || echo a)
  own=$(gid_index "$1" "$family")
  other=$(gid_index "$client" "$family")
  run_pair "$3, ibv_rc_pingpong -m $2, server $1" "$1" tcp:18515 \
    ibv_rc_pingpong -c -m "$2" -s 20000 -n 30 -g "$own" -- \
    ibv_rc_pingpong -c -m "$2" -s 20000 -n 30 -g "$other" "$(address_of "$1" 4)"
}

# expect_failure HOST WORDS COMMAND...: runs a command that must fail with a message that contains the words.
expect_failure() {
  local host=$1 words=$2
  shift 2
  if run_program "$host" timeout 60 "$@" >"$work/refused" 2>&1; then fail "$* on $host connected"; fi
  grep -q "$words" "$work/refused" || fail "$* on $host: no '$words': $(cat "$work/refused")"
  echo "$* on $host: $words"
}

# make_many_connections SERVER: runs cmtime, whose server does not end by itself.  Linux takes some milliseconds for
# each connection, so the timeout grows with the number of connections.
connections=${VB_CONNECTIONS:-1000}
make_many_connections() {
  local client pid program_seconds=$((120 + connections / 50))
  client=$([ "$1" = a ] && echo b || echo a)
  start_program "$1" cmtime -b "$address" >"$work/server" 2>&1 &
  pid=$!
  until_true 30 listens "$1" "$address" 7471 || fail "no cmtime on $1: $(cat "$work/server")"
  run_program "$client" cmtime -s "$address" -c "$connections" >"$work/client" 2>&1 || fail "cmtime on $client: $(tail -4 "$work/client")"
  grep -q '^destroy  *: ' "$work/client" && ! grep -qi 'fail\|error\|event:' "$work/client" ||
    fail "cmtime on $client: $(cat "$work/client")"
  on "$1" kill "$(on "$1" pidof cmtime)"
  wait $pid 2>/dev/null || true
  echo "cmtime -c $connections, server $1: ok"
}

guest_mib=$((512 + connections / 4))
make_pair 1500
for mtu in 1500 4200; do
  for host in a b; do on $host ip link set eth0 mtu $mtu; done
  for server in a b; do
    for family in 4 6; do
      address=$(address_of $server $family)
      what="MTU $mtu, IPv$family"
      rping_round $server 10 20000 "$what"
      if [ $mtu = 1500 ]; then pingpong $server 1024 "$what"; else pingpong $server 4096 "$what"; fi
    done
  done
done

for server in a b; do
  family=4 address=$(address_of $server 4)
  run_pair "ucmatose, server $server" $server 7471 ucmatose -b @ -c 5 -C 20 -S 3000 -- \
    ucmatose -s @ -c 5 -C 20 -S 3000
  run_pair "ucmatose -m, server $server" $server 7471 ucmatose -m -b @ -c 5 -C 20 -- \
    ucmatose -m -s @ -c 5 -C 20
  make_many_connections $server
  run_pair "rdma_client, server $server" $server 7471 rdma_server -s @ -- rdma_client -s @
done

expect_failure a REJECTED rping -c -a "$(address_of b 4)" -p 9 -C 1
expect_failure b REJECTED rping -c -a "$(address_of a 4)" -p 9 -C 1

line "both loss=2"
dreq_may_be_lost=1 program_seconds=40
for server in a b; do
  address=$(address_of $server 4)
  rping_round $server "${VB_LOSSY_ROUNDS:-10}" 20000 "2 % loss"
  run_pair "2 % loss, ucmatose, server $server" $server 7471 ucmatose -b @ -c 3 -C 10 -S 3000 -- \
    ucmatose -s @ -c 3 -C 10 -S 3000
done
line_counts | grep -q "lost=[1-9].*lost=[1-9]" || fail "the line lost nothing: $(line_counts)"
line "both"

# Connects to a host that does not exist.  Programs must get ADDR_ERROR when neighbour discovery fails.
expect_failure a ADDR_ERROR rping -c -a 10.77.0.9 -C 1
expect_failure b ADDR_ERROR rping -c -a 10.77.0.9 -C 1

line_counts
check_captures
