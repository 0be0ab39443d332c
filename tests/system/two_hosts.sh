#!/bin/bash
# Connects two hosts, each with an agent, by one line.  Tests each address family and MTU, then each kind of fault of
# the line, and then all kinds together.  VB_SEED sets the seed of the faults.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need rping ucmatose rdma_client tshark python3

listens() { on "$1" verbena ps | grep -q "listening.*:$2\b"; }
wait_listens() { until_true 20 listens "$1" "$2" || fail "nothing listens on port $2 of host $1"; }

# ping_pong FAMILY ROUNDS BYTES WHAT: runs an rping server on host b and its client on host a, which verify each byte.
ping_pong() {
  local address server
  address=$(address_of b "$1")
  start_on b verbena run -- timeout 120 rping -s -a "$address" -C "$2" -S "$3" -V >"$work/server" 2>&1 &
  server=$!
  wait_listens b 7174
  on a verbena run -- timeout 120 rping -c -a "$address" -C "$2" -S "$3" -V >"$work/client" 2>&1 ||
    fail "$4 (seed $line_seed): the client: $(tail -3 "$work/client"); $(line_counts)"
  wait "$server" || fail "$4 (seed $line_seed): the server: $(tail -3 "$work/server")"
  echo "$4: $address, $2 rounds of $3 bytes: ok"
}

make_hosts 1500
for mtu in 1500 4200 9000; do
  on a ip link set eth0 mtu $mtu
  on b ip link set eth0 mtu $mtu
  ping_pong 4 20 20000 "MTU $mtu"
  ping_pong 6 20 20000 "MTU $mtu"
done

ping_pong local 20 20000 "link-local"

start_on b verbena run -- timeout 60 ucmatose -c 5 >"$work/server" 2>&1 &
server=$!
wait_listens b 7471
on a verbena run -- timeout 60 ucmatose -c 5 -s "$(address_of b 4)" >"$work/client" 2>&1 ||
  fail "ucmatose: $(tail -3 "$work/client")"
wait $server || fail "ucmatose's server: $(tail -3 "$work/server")"
start_on b verbena run -- timeout 60 rdma_server >"$work/server" 2>&1 &
server=$!
wait_listens b 7471
on a verbena run -- timeout 60 rdma_client -s "$(address_of b 4)" >"$work/client" 2>&1 ||
  fail "rdma_client: $(cat "$work/client")"
wait $server || fail "rdma_server: $(cat "$work/server")"
echo "ucmatose, rdma_client: ok"

# Tests the address of a host that does not exist.
for address in 10.77.0.9 fd77::9; do
  ! on a verbena run -- timeout 60 rping -c -a $address -C 1 >"$work/nobody" 2>&1 ||
    fail "rping connects to a host that does not exist"
  grep -q ADDR_ERROR "$work/nobody" || fail "no ADDR_ERROR: $(cat "$work/nobody")"
done
echo "a host that does not exist: ok"

for faults in loss=2 loss=10 duplicate=10 reorder=20 corrupt=1 delay=100; do
  rounds=20
  [ $faults != delay=100 ] || rounds=3
  line "a>b $faults"
  ping_pong 4 $rounds 3000 "a>b $faults"
  line "both"
done
line "both loss=5 duplicate=5 reorder=10 corrupt=1 jitter=1"
ping_pong 6 20 10000 "all together"
line_counts
captures
for host in a b; do
  # The check covers only the packets that a host has sent, because the line may have corrupted the received ones.
  own=("$(address_of $host 4)" "$(address_of $host 6)" "fe80::$host")
  sent=$(python3 "$VB_SOURCE/tests/wire/check_capture.py" "$work/line.$host.pcap" "${own[@]}") ||
    fail "the capture of host $host"
  [ "$sent" -gt 500 ] || fail "only $sent RoCEv2 packets in the capture of host $host"
  malformed=$(tshark -r "$work/line.$host.pcap" --disable-protocol rpcordma -Y \
    "_ws.malformed && (ip.src == ${own[0]} || ipv6.src == ${own[1]})" 2>"$work/tshark") ||
    fail "tshark: $(cat "$work/tshark")"
  [ -z "$malformed" ] || fail "malformed packets of host $host: $malformed"
  echo "host $host: $sent packets sent, every ICRC right, none malformed"
done
