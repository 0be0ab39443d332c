#!/bin/bash
# Tests datagrams of the RDMA CM between Verbena and Linux: RDMA_PS_UDP over IPv4 and IPv6, and multicast over IPv4.
# The same programs run on both hosts.  IPv6 groups are not tested, because Linux's RDMA CM does not join them on RoCE
# (ENOTSUPP).
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need udaddy mckey

make_pair 1500

# Each host is the server in turn.  The client finds the server's QP by SIDR.
for server in a b; do
  for family in 4 6; do
    address=$(address_of $server $family)
    for bytes in 100 1000; do
      run_pair "udaddy, IPv$family, server $server, $bytes bytes" $server 7174 \
        udaddy -b @ -c 4 -C 10 -S $bytes -- udaddy -s @ -c 4 -C 10 -S $bytes
    done
  done
done

group=239.77.1.6
verbena_is_member() { on a ip maddress show dev eth0 | grep -q "$group"; }
# Prints how often soft-RoCE has added the group's MAC address (33:33 and the end of the GID) to the interface.  It does
# this when a first queue pair attaches to the group, and it does not remove the address when the last one detaches.  So
# the number grows when a program joins, if no other program of the host is a member.
linux_members() { on b ip maddress show dev eth0 | awk '/33:33:ef:4d:01:06/ { print $4 ? $4 : 1 }'; }
linux_is_member() { [ "$(linux_members)" -gt "${before:-0}" ]; }

# send_multicast SENDER RECEIVER WHAT OPTION...: mckey on RECEIVER receives the messages of mckey on SENDER.
send_multicast() {
  local sender=$1 receiver=$2 what=$3 is_member pid
  shift 3
  is_member=$([ "$receiver" = a ] && echo verbena_is_member || echo linux_is_member)
  before=$(linux_members)
  start_program "$receiver" mckey -m $group -b "$(address_of "$receiver" 4)" -C 5 >"$work/receiver" 2>&1 &
  pid=$!
  until_true 30 "$is_member" || fail "$what: mckey on $receiver does not join: $(cat "$work/receiver"; on "$receiver" ip maddress show dev eth0)"
  run_program "$sender" mckey -m $group -b "$(address_of "$sender" 4)" -s "$@" -C 5 >"$work/sender" 2>&1 ||
    fail "$what: mckey -s $* on $sender: $(cat "$work/sender")"
  wait $pid || fail "$what: mckey on $receiver: $(cat "$work/receiver")"
  echo "$what: ok"
}
for member in "" -o; do
  send_multicast b a "mckey -s $member, Linux to Verbena" $member
  send_multicast a b "mckey -s $member, Verbena to Linux" $member
done
check_captures
