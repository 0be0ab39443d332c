#!/bin/bash
# Tests RDMA_PS_UDP and multicast of the RDMA CM with the programs of rdma-core: udaddy, mckey.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need udaddy mckey tshark python3

listens() { on "$1" verbena ps | grep -q "listening.*:$2\b"; }
ends_well() {  # ends_well PID NAME
  wait "$1" || fail "$2: exit $?: $(tail -5 "$work/$2")"
  grep -aq 'return status 0' "$work/$2" || fail "$2: $(tail -5 "$work/$2")"
}

make_hosts 1500
for family in 4 6; do
  address_a=$(address_of a $family) address_b=$(address_of b $family)
  for connections in 1 20; do
    start_on b verbena run -- timeout 60 udaddy -b "$address_b" -c $connections -C 10 >"$work/server" 2>&1 &
    server=$!
    until_true 20 listens b 7174 || fail "udaddy: $(cat "$work/server")"
    on a verbena run -- timeout 60 udaddy -s "$address_b" -c $connections -C 10 >"$work/client" 2>&1 ||
      fail "udaddy -c $connections to $address_b: exit $?: $(tail -5 "$work/client") server: $(tail -5 "$work/server")"
    ends_well $server server
  done
  echo "IPv$family: udaddy, 1 and 20 connections: ok"
done

for gid in ::ffff:10.77.0.2 fd77::2; do
  start_on b verbena run -- timeout 60 udaddy -f gid -b $gid -c 3 -C 10 >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens b 7174 || fail "udaddy -f gid: $(cat "$work/server")"
  on a verbena run -- timeout 60 udaddy -f gid -s $gid -c 3 -C 10 >"$work/client" 2>&1 ||
    fail "udaddy -f gid $gid: exit $?: $(tail -5 "$work/client") server: $(tail -5 "$work/server")"
  ends_well $server server
done
echo "udaddy by GID: ok"

# The line loses requests and responses in bursts, or duplicates them.  Each request must get an answer in the end.
line "both loss=30 burst=3 duplicate=10"
start_on b verbena run -- timeout 100 udaddy -b 10.77.0.2 -c 20 -C 0 >"$work/server" 2>&1 &
server=$!
until_true 20 listens b 7174 || fail "udaddy: $(cat "$work/server")"
on a verbena run -- timeout 100 udaddy -s 10.77.0.2 -c 20 -C 0 >"$work/client" 2>&1 ||
  fail "udaddy on a bad line: exit $?: $(tail -5 "$work/client") server: $(tail -5 "$work/server"); $(line_counts)"
ends_well $server server
echo "udaddy, 20 connections on a bad line: ok; $(line_counts)"
line both

# If no program listens, the client must get an error with the peer's reason at once.
start_time=$SECONDS
! VERBENA_VERBOSE=1 on a verbena run -- timeout 60 udaddy -s 10.77.0.2 >"$work/client" 2>&1 || fail "udaddy connects without a listener"
[ $((SECONDS - start_time)) -lt 10 ] || fail "udaddy without a listener took $((SECONDS - start_time)) s"
grep -q 'connect to 10.77.0.2:7174 failed after .*: refused, no program listens on the port (SIDR status 1)' "$work/client" ||
  fail "udaddy without a listener: $(cat "$work/client")"
echo "nobody listens: reported at once"

# Host a has one member of a group, and host b has three members.  One of them leaves early, and the others must get all
# messages.
members() {  # members HOST GROUP: prints how many sockets of the host are members
  on "$1" ip maddress show dev eth0 |
    awk -v group="$2" '$2 == group { n = $3 == "users" ? $4 : 1 } END { print n + 0 }'
}
has_members() { [ "$(members "$1" "$2")" = "$3" ]; }
receive() {  # receive NAME HOST GROUP ADDRESS COUNT: starts a member that ends after COUNT messages
  start_on "$2" verbena run -- timeout 60 mckey -m "$3" -b "$4" -C "$5" >"$work/$1" 2>&1 &
  receiver_pid[$1]=$!
}
declare -A receiver_pid
for family in 4 6; do
  [ $family = 4 ] && group=239.77.1.5 || group=ff15::7701
  address_a=$(address_of a $family) address_b=$(address_of b $family)
  receive first b $group "$address_b" 10
  receive second b $group "$address_b" 5
  receive third b $group "$address_b" 10
  receive home a $group "$address_a" 10
  until_true 20 has_members b $group 3 || fail "members on b: $(members b $group): $(cat "$work"/{first,second,third})"
  until_true 20 has_members a $group 1 || fail "members on a: $(members a $group): $(cat "$work/home")"
  on a verbena run -- timeout 60 mckey -m $group -b "$address_a" -s -C 10 >"$work/sender" 2>&1 ||
    fail "mckey -s: exit $?: $(tail -5 "$work/sender")"
  for name in first second third home; do ends_well "${receiver_pid[$name]}" $name; done
  until_true 20 has_members b $group 0 || fail "members remain on b: $(members b $group)"

  # The sender joins the group only to send (-o).
  receive first b $group "$address_b" 3
  until_true 20 has_members b $group 1 || fail "members on b: $(members b $group): $(cat "$work/first")"
  on a verbena run -- timeout 60 mckey -m $group -b "$address_a" -s -o -C 3 >"$work/sender" 2>&1 ||
    fail "mckey -s -o: exit $?: $(tail -5 "$work/sender")"
  ends_well "${receiver_pid[first]}" first
  echo "IPv$family: mckey, four members of which one leaves, and one that only sends: ok"
done

check_captures
# The captures must have one SIDR_REQ and one SIDR_REP for each connection.  Repeats have the same transaction id.
expected=$((2 * 21 + 2 * 3 + 20 + 1))
for attribute in 0x0017 0x0018; do
  count=$(fields a "infiniband.mad.attributeid == $attribute" -e infiniband.mad.transactionid | sort -u | wc -l)
  [ "$count" -eq $expected ] || fail "$count requests or responses with attribute $attribute, not $expected"
done
echo "SIDR messages on the wire: ok"
