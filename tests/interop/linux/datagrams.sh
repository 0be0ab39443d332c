#!/bin/bash
# RDMA_PS_UDP over IPv4 and IPv6, and multicast, of the RDMA CM between ours and Linux, with each program
# unmodified on both.  Linux's RDMA CM joins no IPv6 group on RoCE (ENOTSUPP).
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need udaddy mckey

make_pair 1500

# SIDR: each side asks once.
for server in a b; do
  for family in 4 6; do
    address=$(address_of $server $family)
    for bytes in 100 1000; do
      pair "udaddy, IPv$family, server $server, $bytes bytes" $server 7174 \
        udaddy -b @ -c 4 -C 10 -S $bytes -- udaddy -s @ -c 4 -C 10 -S $bytes
    done
  done
done

group=239.77.1.6
ours_is_member() { on a ip maddress show dev eth0 | grep -q "$group"; }
# Soft-RoCE takes each group for an IPv6 group when a queue pair is attached.
theirs() { on b ip maddress show dev eth0 | awk '/33:33:ef:4d:01:06/ { print $4 ? $4 : 1 }'; }
theirs_is_member() { [ "$(theirs)" -gt "${before:-0}" ]; }

# speaks SPEAKER HEARER WHAT OPTION...: mckey on HEARER hears what mckey on SPEAKER sends.
speaks() {
  local speaker=$1 hearer=$2 what=$3 hears pid
  shift 3
  hears=$([ "$hearer" = a ] && echo ours_is_member || echo theirs_is_member)
  before=$(theirs)
  start_runs "$hearer" mckey -m $group -b "$(address_of "$hearer" 4)" -C 5 >"$work/hearer" 2>&1 &
  pid=$!
  until_true 30 "$hears" || fail "$what: mckey on $hearer does not join: $(cat "$work/hearer"; on "$hearer" ip maddress show dev eth0)"
  runs "$speaker" mckey -m $group -b "$(address_of "$speaker" 4)" -s "$@" -C 5 >"$work/speaker" 2>&1 ||
    fail "$what: mckey -s $* on $speaker: $(cat "$work/speaker")"
  wait $pid || fail "$what: mckey on $hearer: $(cat "$work/hearer")"
  echo "$what: ok"
}
for member in "" -o; do
  speaks b a "mckey -s $member, Linux speaks, ours hears" $member
  speaks a b "mckey -s $member, ours speaks, Linux hears" $member
done
check_captures
