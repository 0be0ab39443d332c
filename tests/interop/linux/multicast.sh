#!/bin/bash
# Sends multicast packets in both directions between Verbena and Linux.  On Verbena a program uses only verbs, and on
# Linux mckey uses the RDMA CM.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mcast=$VB_PREFIX/tests/programs/mcast
group=239.77.1.5

make_pair 1500
receiver_is_ready() { grep -qsxF here "$work/ours"; }
start_program a "$mcast" hear $group "$(address_of a 4)" 10 >"$work/ours" 2>&1 &
ours=$!
until_true 30 receiver_is_ready || fail "ours: $(cat "$work/ours")"
run_program b mckey -m $group -s -C 10 -S 100 -b "$(address_of b 4)" >"$work/mckey" 2>&1 || fail "mckey -s: $(cat "$work/mckey")"
wait $ours || fail "Verbena does not receive from Linux: $(cat "$work/ours")"
[ "$(grep -ac '^0: ' "$work/ours")" -eq 10 ] || fail "Verbena received: $(cat "$work/ours")"
echo "Linux to Verbena: ok"

# Prints how often soft-RoCE has joined the IPv6 group.  soft-RoCE joins this group once for each queue pair that is
# attached to the IPv4 group, and never leaves it.
count_joins() { on b ip maddress show dev eth0 | awk '/33:33:ef:4d:01:05/ { print $4 ? $4 : 1 }'; }
before=$(count_joins)
has_joined() { [ "$(count_joins)" -gt "${before:-0}" ]; }
start_program b mckey -m $group -C 3 -S 100 -b "$(address_of b 4)" >"$work/mckey" 2>&1 &
theirs=$!
until_true 30 has_joined || fail "mckey does not join: $(cat "$work/mckey"; on b ip maddress show dev eth0)"
for message in 1 2 3; do
  run_program a "$mcast" say $group "$(address_of a 4)" "message $message" >"$work/say" 2>&1 || fail "say: $(cat "$work/say")"
done
wait $theirs || fail "Linux does not receive from Verbena: $(cat "$work/mckey")"
echo "Verbena to Linux: ok"
check_captures
