#!/bin/bash
# `verbena fabric fault` makes virtual hosts hang, makes links slow or flapping, and changes MTUs and P_Keys.  Programs
# must wait and continue, or end with the error that the specification names.
unset VERBENA_LINK
source "$VB_SOURCE/tests/system/lib.sh"
source "$VB_SOURCE/tests/system/lib_faults.sh"
need ibv_devinfo ibv_asyncwatch ibv_rc_pingpong rping python3 ss

cat >"$work/lab.toml" <<'TOML'
[[hosts]]
name = "a"
rails = [ { network = "red", addresses = ["10.31.0.1"], pkeys = [0xffff, 0x8001] } ]
[[hosts]]
name = "b"
rails = [ { network = "red", addresses = ["10.31.0.2"] } ]
TOML
verbena fabric up "$work/lab.toml" >/dev/null

packets_wait() { [ "$(counter late)" -gt 0 ]; }
no_packet_waits() { [ "$(counter late)" -eq 0 ]; }

# ---- a host hangs for a moment: no packet is lost, and the connection continues
start_on a rping -s -P -a 10.31.0.1 -p 7300 -S 4000 -V >"$work/server" 2>&1 &
server=$!
wait_listens a 7300
start_on b rping -c -a 10.31.0.1 -p 7300 -S 4000 -V >"$work/client" 2>&1 &
client=$!
wait_traffic
cause_fault "node a is paused" node a paused
shows "fault: node a is paused" || fail "fabric show: $(verbena fabric show)"
until_true 10 packets_wait || fail "no packet waits: $(verbena fabric show)"
cause_fault "node a is on" node a on
wait_traffic
until_true 10 no_packet_waits || fail "packets still wait: $(verbena fabric show)"
[ "$(counter dropped_late_full)" -eq 0 ] || fail "packets were dropped: $(verbena fabric show)"
end_program $client
echo "a host that hangs for a moment: ok"

# ---- the agent of a host that hangs answers no request for a connection until the host continues
cause_fault "node a is paused" node a paused
start_on b timeout 60 rping -c -a 10.31.0.1 -p 7300 -C 3 -S 100 >"$work/client" 2>&1 &
client=$!
until_true 10 packets_wait || fail "no request for a connection waits: $(verbena fabric show)"
gone $client && fail "the client has ended: $(cat "$work/client")"
cause_fault "node a is on" node a on
wait $client || fail "the client: $(cat "$work/client")"
end_program $server
echo "a connect that waits: ok"

# ---- a host hangs for too long: its peer's requests end with the error of the specification
start_on a ibv_rc_pingpong -g 0 -n 100000000 -p 7301 >"$work/server" 2>&1 &
server=$!
until_true 20 listens_tcp 7301 || fail "the server does not listen: $(cat "$work/server")"
start_on b ibv_rc_pingpong -g 0 -n 100000000 -p 7301 127.0.0.1 >"$work/client" 2>&1 &
client=$!
wait_traffic
cause_fault "node a is paused" node a paused
# Either program may report the error, because packets of the hanging host are not delivered, either.
retries_exceeded() { grep -q 'transport retry counter exceeded (12)' "$work/client" "$work/server"; }
until_true 60 retries_exceeded || fail "a host that hangs: $(tail -n 3 "$work/client" "$work/server")"
cause_fault "node a is on" node a on
end_program $server
end_program $client
echo "a host that hangs: ok"

# ---- a link is slow: each ping-pong takes 2 x 5 ms longer
start_on a ibv_rc_pingpong -g 0 -n 100 -p 7302 >"$work/server" 2>&1 &
until_true 20 listens_tcp 7302 || fail "the server does not listen: $(cat "$work/server")"
cause_fault "link b:verbena0 - red delays packets by 5ms" link b red slow 5ms
shows "fault: link b:verbena0 - red delays packets by 5ms" || fail "fabric show: $(verbena fabric show)"
on b timeout 60 ibv_rc_pingpong -g 0 -n 100 -p 7302 127.0.0.1 >"$work/client" 2>&1 || fail "slow: $(cat "$work/client")"
python3 - "$work/client" <<'PY' || fail "a slow link is not slow: $(cat "$work/client")"
import re, sys
us = float(re.search(r'= ([0-9.]+) usec/iter', open(sys.argv[1]).read()).group(1))
sys.exit(0 if us >= 10000 else 1)
PY
cause_fault "link b:verbena0 - red is not slow" link b red slow 0
echo "slow link: ok"

# ---- a link flaps: programs get an event each time that their port goes up or down
: >"$work/events"
start_on a ibv_asyncwatch -d verbena0 >"$work/events" 2>&1 &
watch=$!
has_event() { grep -q "$1" "$work/events"; }
until_true 20 has_event 'async event FD' || fail "ibv_asyncwatch: $(cat "$work/events")"
cause_fault "link a:verbena0 - red flaps: 50ms down, 50ms up, at random (seed 3)" link a red flapping 50ms 50ms --seed 3
shows "fault: link a:verbena0 - red flaps" || fail "fabric show: $(verbena fabric show)"
port_has_flapped() { [ "$(grep -c 'IBV_EVENT_PORT_ACTIVE\|port active' "$work/events")" -ge 3 ]; }
until_true 20 port_has_flapped || fail "the port does not flap: $(cat "$work/events")"
cause_fault "link a:verbena0 - red is up" link a red up
! shows fault: || fail "fabric show: $(verbena fabric show)"
echo "flapping link: ok"

# ---- a link gets another MTU
mtu() { on a ibv_devinfo | sed -n 's/.*active_mtu:[[:space:]]*\([0-9]*\).*/\1/p'; }
[ "$(mtu)" = 4096 ] || fail "the MTU: $(on a ibv_devinfo)"
cause_fault "link a:verbena0 - red has an MTU of 1500 bytes" link a red mtu 1500
[ "$(mtu)" = 1024 ] || fail "the MTU: $(on a ibv_devinfo)"
start_on a ibv_rc_pingpong -g 0 -m 1024 -p 7303 >"$work/server" 2>&1 &
server=$!
until_true 20 listens_tcp 7303 || fail "the server does not listen: $(cat "$work/server")"
# The client does not know the MTU of the other host's link, so the network drops its long packets.
if on b timeout 60 ibv_rc_pingpong -g 0 -m 4096 -p 7303 127.0.0.1 >"$work/client" 2>&1; then fail "4096 bytes pass"; fi
grep -q 'packets are dropped: packets of .* bytes are too long' "$work/client" || fail "too long: $(cat "$work/client")"
[ "$(counter dropped_too_long)" -gt 0 ] || fail "nothing was too long: $(verbena fabric show)"
end_program $server
expect_refusal "the MTU of a rail must be 576 to 65535" link a red mtu 100
cause_fault "link a:verbena0 - red has its default MTU" link a red mtu default
[ "$(mtu)" = 4096 ] || fail "the MTU: $(on a ibv_devinfo)"
echo "MTU: ok"

# ---- a P_Key is removed
start_on a ibv_rc_pingpong -g 0 -n 100000000 -p 7304 >"$work/server" 2>&1 &
server=$!
until_true 20 listens_tcp 7304 || fail "the server does not listen: $(cat "$work/server")"
start_on b ibv_rc_pingpong -g 0 -n 100000000 -p 7304 127.0.0.1 >"$work/client" 2>&1 &
client=$!
wait_traffic
! has_event PKEY_CHANGE || fail "events: $(cat "$work/events")"
cause_fault "node a has lost P_Key 0xffff" node a pkey 0xffff removed
shows "fault: node a has lost P_Key 0xffff" || fail "fabric show: $(verbena fabric show)"
until_true 10 has_event PKEY_CHANGE || fail "no program gets the event: $(cat "$work/events")"
until_true 60 retries_exceeded || fail "without the P_Key: $(tail -n 3 "$work/client" "$work/server")"
end_program $server
end_program $client
expect_refusal "node a has no P_Key 0x8123" node a pkey 0x8123 removed
cause_fault "node a has got P_Key 0xffff" node a pkey 0xffff added
start_on a ibv_rc_pingpong -g 0 -n 100 -p 7305 >"$work/server" 2>&1 &
until_true 20 listens_tcp 7305 || fail "the server does not listen: $(cat "$work/server")"
on b timeout 60 ibv_rc_pingpong -g 0 -n 100 -p 7305 127.0.0.1 >"$work/client" 2>&1 || fail "again: $(cat "$work/client")"
end_program $watch
echo "P_Key: ok"

# ---- impossible faults are refused
cause_fault "node a is off, and disconnected from its networks" node a off
expect_refusal "node a is off, so it cannot be paused" node a paused
expect_refusal "'5' is not a delay" link a red slow 5
verbena fabric down >/dev/null
check_nothing_left
echo "impossible faults: ok"
