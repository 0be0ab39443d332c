#!/bin/bash
# ctest: PLAIN
# Connections of the RDMA CM between ports with two LIDs have an alternate path by another switch.  They must migrate to
# this path if their switch fails while no manager runs that could reroute them.
source "$VB_SOURCE/tests/system/lib.sh"
source "$VB_SOURCE/tests/system/lib_managers.sh"
unset VERBENA_LINK  # programs on a fabric need lanes
need opensm rping ibstat ibv_devinfo ibtracert

export VERBENA_FABRIC=alternate
verbena fabric make --fat-tree 4 >"$work/net"
verbena fabric up "$work/net" --name alternate --sm none >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
begin_manager host2 5 'lmc 1'
wait_active host1 host2 host3 host4

# spine_to LID: prints the switch in the middle of the route from host3 to the LID.
spine_to() { on host3 ibtracert "$(lid host3)" "$1" 2>&1 | sed -n 's/.*"\(spine[12]\)".*/\1/p' | head -1; }
lid=$(lid host1)
first_spine=$(spine_to "$lid") second_spine=$(spine_to $((lid + 1)))
[ -n "$first_spine" ] && [ -n "$second_spine" ] && [ "$first_spine" != "$second_spine" ] || fail "the paths from host3 to host1 are by '$first_spine' and '$second_spine'"

# The connections use the two paths in turn.
listens() { VERBENA_NODE=host1 verbena ps | grep -q "listening.*:$1\b"; }
packets() { VERBENA_NODE=host3 verbena ps --counters | awk -v pid="$1" '$1 == pid && $3 == "packets_out" { n = $4 } END { print n + 0 }'; }
has_sent() { [ "$(packets "$1")" -gt "$2" ]; }
# wait_traffic PID: waits until the program has sent 200 further packets.
wait_traffic() { until_true 60 has_sent "$1" $(($(packets "$1") + 200)) || fail "a connection has no traffic: $(cat "$work"/client.*)"; }
clients=() servers=()
for port in 7201 7202 7203 7204; do
  start_on host1 rping -s -p $port -S 1000 -V >"$work/server.$port" 2>&1 &
  servers+=($!)
  until_true 20 listens $port || fail "the server does not listen: $(cat "$work/server.$port")"
  start_on host3 rping -c -a 10.0.0.1 -p $port -S 1000 -V >"$work/client.$port" 2>&1 &
  clients+=($!)
  wait_traffic $!
done
migrations() { VERBENA_NODE=host3 verbena ps --counters | awk '$3 == "migrations" { n += $4 } END { print n + 0 }'; }
[ "$(migrations)" = 0 ] || fail "connections have migrated already"

end_manager host2
verbena fabric fault node "$first_spine" off >/dev/null || fail "$first_spine cannot be switched off"
# The counters that ps shows are some milliseconds old.  So traffic after the fault proves nothing before both connections
# have migrated.
have_migrated() { [ "$(migrations)" -ge 2 ]; }
until_true 60 have_migrated || fail "$(migrations) connections have migrated, not the two whose switch has died"
for client in "${clients[@]}"; do wait_traffic "$client"; done
[ "$(migrations)" = 2 ] || fail "$(migrations) connections have migrated, not only the two whose switch has died"
kill "${clients[@]}" "${servers[@]}"
wait "${clients[@]}" "${servers[@]}" 2>/dev/null || true
verbena fabric down alternate >"$work/down" || fail "the fabric does not go down"
check_nothing_left
