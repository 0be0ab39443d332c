#!/bin/bash
# Tests IPv4 and IPv6 multicast with members on one host and on two hosts.  Also tests members that leave or are killed,
# and joins that must be refused.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need tshark python3
programs=$VB_PREFIX/tests/programs

has_received() { grep -qsxF "$2" "$work/$1"; }
wait_received() {
  until_true 20 has_received "$1" "$2" || fail "$1 does not print '$2': $(cat "$work/$1")
$(for host in a b; do on $host verbena ps --counters; on $host cat /proc/net/snmp /proc/net/snmp6 /proc/net/udp /proc/net/udp6; done)"
}
start_member() {  # start_member NAME HOST GROUP ADDRESS COUNT [QPS]
  local name=$1 host=$2
  shift 2
  start_on "$host" verbena run -- timeout 60 "$programs/mcast" hear "$@" >"$work/$name" 2>&1 &
  pid_of[$name]=$!
  wait_received "$name" here
}
send_text() {  # send_text HOST GROUP ADDRESS TEXT
  on "$1" verbena run -- timeout 20 "$programs/mcast" say "${@:2}" >"$work/say" 2>&1 || fail "say $*: $(cat "$work/say")"
}
ends_well() { wait "${pid_of[$1]}" || fail "$1: $(cat "$work/$1")"; }
declare -A pid_of

make_hosts 1500
for family in 4 6; do
  [ $family = 4 ] && group=239.77.1.5 other=239.77.1.6 || group=ff15::7701 other=ff15::7702
  address_a=$(address_of a $family) address_b=$(address_of b $family)

  # Host b has a program with two QPs and one with one QP.  Host a has a program with one QP.  The member of another
  # group must get no message.
  start_member two b $group "$address_b" 4 2
  start_member one b $group "$address_b" 2
  start_member home a $group "$address_a" 2
  start_member other b $other "$address_b" 1
  send_text a $group "$address_a" "from a"
  send_text b $group "$address_b" "from b"
  for text in "from a" "from b"; do
    for line in "0: $text" "1: $text"; do wait_received two "$line"; done
    wait_received one "0: $text"
    wait_received home "0: $text"
  done
  for name in two one home; do ends_well $name; done
  send_text a $other "$address_a" "the other"
  wait_received other "0: the other"
  ends_well other
  [ "$(cat "$work/other")" = $'here\n0: the other' ] || fail "a member of another group received: $(cat "$work/other")"
  echo "IPv$family: every member gets each message, also those from its own host"
done

# A link-local group must work.
start_member link b ff12::7703 fe80::b 1
send_text a ff12::7703 fe80::a "on this link"
wait_received link "0: on this link"
ends_well link

# From 127.0.0.1 a message reaches the members on this host.  From ::1 the kernel has no route to any group, so the call
# must fail instead of losing each message.
start_member inner a 239.77.1.8 127.0.0.1 1
send_text a 239.77.1.8 127.0.0.1 "inside"
wait_received inner "0: inside"
ends_well inner
on a verbena run -- timeout 20 "$programs/mcast" say ff15::7701 ::1 lost >"$work/say" 2>&1 && fail "a message from ::1 is lost silently"
[ "$(cat "$work/say")" = "ibv_create_ah: Network is unreachable" ] || fail "say from ::1: $(cat "$work/say")"

# A killed program must no longer be a member.
members() { on b ip maddress show dev eth0 | grep -c '239\.77\.1\.5' || true; }
has_members() { [ "$(members)" -eq "$1" ]; }
start_member dies b 239.77.1.5 10.77.0.2 1
has_members 1 || fail "the kernel has no member"
kill -9 "$(pgrep -P "${pid_of[dies]}" || echo "${pid_of[dies]}")"
wait "${pid_of[dies]}" || true
until_true 20 has_members 0 || fail "a dead program is a member"

# A new interface must join the groups that a program has joined on all interfaces.
start_member later b 239.77.1.7 10.77.0.2 1
on b ip link add link eth0 name more type macvlan mode bridge
on b ip link set more up
on b ip address add 10.79.0.1/24 dev more
has_group() { on b ip maddress show dev more | grep -q '239\.77\.1\.7'; }
until_true 20 has_group || fail "the new interface has not joined: $(on b ip maddress show dev more)"
send_text a 239.77.1.7 10.77.0.1 "still"
wait_received later "0: still"
ends_well later

# Wrong calls must be refused, and also joins beyond the kernel's limit.
on b sysctl -qw net.ipv4.igmp_max_memberships=12
on b verbena run -- timeout 60 "$programs/mcast" misuse 239.77.2.0 10.77.0.2 >"$work/misuse" 2>&1 ||
  fail "misuse: $(cat "$work/misuse")"
groups=$(sed -n 's/^groups: //p' "$work/misuse")
[ "${groups:-0}" -ge 1 ] && [ "$groups" -le 12 ] && ! grep -q ', not ' "$work/misuse" || fail "misuse: $(cat "$work/misuse")"

# The packets must have the group's MAC address and QP number 0xffffff.  There must be IGMP and MLD messages.
check_captures
wire=$(fields a 'infiniband && ip.dst == 239.77.1.5' -e eth.dst -e ip.ttl -e infiniband.bth.destqp | sort -u)
[ "$wire" = $'01:00:5e:4d:01:05\t3\t0xffffff' ] || fail "IPv4 multicast on the wire: $wire"
wire=$(fields a 'infiniband && ipv6.dst == ff15::7701' -e eth.dst -e ipv6.hlim -e infiniband.bth.destqp | sort -u)
[ "$wire" = $'33:33:00:00:77:01\t3\t0xffffff' ] || fail "IPv6 multicast on the wire: $wire"
[ -n "$(fields b 'igmp.maddr == 239.77.1.5' -e igmp.maddr)" ] || fail "no IGMP report"
[ -n "$(fields b 'icmpv6.mldr.mar.multicast_address == ff15::7701' -e icmpv6.type)" ] || fail "no MLD report"
echo "multicast on the wire: ok"
