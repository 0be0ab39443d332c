#!/bin/bash
# Multicast between ours, by verbs alone, and Linux, by its RDMA CM (mckey): each hears the other.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
mcast=$VB_PREFIX/tests/programs/mcast
group=239.77.1.5

make_pair 1500
is_here() { grep -qsxF here "$work/ours"; }
start_runs a "$mcast" hear $group "$(address_of a 4)" 10 >"$work/ours" 2>&1 &
ours=$!
until_true 30 is_here || fail "ours: $(cat "$work/ours")"
runs b mckey -m $group -s -C 10 -S 100 -b "$(address_of b 4)" >"$work/mckey" 2>&1 || fail "mckey -s: $(cat "$work/mckey")"
wait $ours || fail "ours does not hear Linux: $(cat "$work/ours")"
[ "$(grep -ac '^0: ' "$work/ours")" -eq 10 ] || fail "ours hears: $(cat "$work/ours")"
echo "Linux speaks, ours hears: ok"

# Soft-RoCE takes each group for an IPv6 group when a queue pair is attached, and does not leave it again.
members() { on b ip maddress show dev eth0 | awk '/33:33:ef:4d:01:05/ { print $4 ? $4 : 1 }'; }
before=$(members)
has_joined() { [ "$(members)" -gt "${before:-0}" ]; }
start_runs b mckey -m $group -C 3 -S 100 -b "$(address_of b 4)" >"$work/mckey" 2>&1 &
theirs=$!
until_true 30 has_joined || fail "mckey does not join: $(cat "$work/mckey"; on b ip maddress show dev eth0)"
for message in 1 2 3; do
  runs a "$mcast" say $group "$(address_of a 4)" "message $message" >"$work/say" 2>&1 || fail "say: $(cat "$work/say")"
done
wait $theirs || fail "Linux does not hear ours: $(cat "$work/mckey")"
echo "ours speaks, Linux hears: ok"
check_captures
