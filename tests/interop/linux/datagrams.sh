#!/bin/bash
# RDMA_PS_UDP and multicast of the RDMA CM between ours and Linux, each program unmodified on both.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need udaddy mckey

make_pair 1500
here=$(address_of a 4) there=$(address_of b 4)

# SIDR: each side once as the one that asks.
for server in a b; do
  address=$(address_of $server 4)
  for bytes in 100 1000; do
    pair "udaddy, server $server, $bytes bytes" $server 7174 udaddy -b @ -c 4 -C 10 -S $bytes -- \
      udaddy -s @ -c 4 -C 10 -S $bytes
  done
done

group=239.77.1.6
ours_is_member() { on a ip maddress show dev eth0 | grep -q "$group"; }
# Soft-RoCE takes each group for one of IPv6 when a queue pair is attached.
theirs() { on b ip maddress show dev eth0 | awk '/33:33:ef:4d:01:06/ { print $4 ? $4 : 1 }'; }
before=$(theirs)
theirs_is_member() { [ "$(theirs)" -gt "${before:-0}" ]; }

start_runs a mckey -m $group -b "$here" -C 5 >"$work/ours" 2>&1 &
ours=$!
until_true 30 ours_is_member || fail "mckey here: $(cat "$work/ours")"
runs b mckey -m $group -b "$there" -s -C 5 >"$work/theirs" 2>&1 || fail "mckey -s there: $(cat "$work/theirs")"
wait $ours || fail "mckey here: $(cat "$work/ours")"
echo "Linux speaks, ours hears: ok"

before=$(theirs)
start_runs b mckey -m $group -b "$there" -C 5 >"$work/theirs" 2>&1 &
their_pid=$!
until_true 30 theirs_is_member || fail "mckey there does not join: $(cat "$work/theirs"; on b ip maddress show dev eth0)"
runs a mckey -m $group -b "$here" -s -C 5 >"$work/ours" 2>&1 || fail "mckey -s here: $(cat "$work/ours")"
wait $their_pid || fail "mckey there: $(cat "$work/theirs")"
echo "ours speaks, Linux hears: ok"
check_captures
