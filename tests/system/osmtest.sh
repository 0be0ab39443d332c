#!/bin/bash
# ctest: PLAIN
# Debian's osmtest examines the subnet administration of OpenSM from another host of a simulated subnet: an inventory of
# the SA's records, services, multicast groups, event forwarding, QoS tables, and many large answers.  The test takes
# 35 s, because osmtest often sleeps.
source "$VB_SOURCE/tests/system/lib.sh"
need opensm osmtest

verbena fabric make --hosts 3 --infiniband >"$work/net"
verbena fabric up "$work/net" --name examined >"$work/up" 2>&1 || fail "the fabric does not come up: $(cat "$work/up")"
cd "$work" || fail "no directory"  # osmtest writes its files here

# examine OPTION...: runs osmtest on host2.
examine() { verbena run --fabric examined --node host2 -- timeout 60 osmtest -i inventory -l "$work/log" "$@" >"$work/out" 2>&1; }
# flow NAME OPTION...: runs a flow of osmtest.  It must pass, and osmtest must print its name.
flow() {
  examine "${@:2}" || fail "osmtest ${*:2}: exit $?: $(tail -5 "$work/out") $(grep ERR "$work/log" | tail -5)"
  grep -q "TEST \"$1\" PASS" "$work/out" || fail "osmtest ${*:2}: $(tail -5 "$work/out")"
  echo "$1: ok"
}
flow 'Create Inventory' -f c
for what in 'DEFINE_NODE 4' 'DEFINE_PORT 7' 'DEFINE_PATH 16'; do
  [ "$(grep -c "^${what% *}" inventory)" = "${what#* }" ] || fail "the inventory does not have exactly: $what"
done
# "All Validations" runs the flows for the inventory, services, multicast and event forwarding.
flow 'All Validations' -f a
flow 'Multicast' -f m -M 2
flow 'QoS: VLArb and SLtoVL' -f q
flow 'Stress SA' -f f -s 2
grep -q 'Querying 400[0-9] large mixed queries (rmpp)' out || fail "no flood of large answers: $(cat out)"

# The inventory contains host3, so it must not match the subnet when host3 is off.
lacks_host3() {
  verbena run --fabric examined --node host2 -- timeout 20 saquery >nodes 2>/dev/null || return 1
  grep -q host2 nodes && ! grep -q host3 nodes
}
verbena fabric fault node --name examined host3 off >fault
until_true 20 lacks_host3 || fail "OpenSM still reports host3"
! examine -f v || fail "osmtest accepts the inventory with host3, although host3 is off"
echo "a wrong inventory is noticed: ok"
verbena fabric down examined >down || fail "the fabric does not go down"
