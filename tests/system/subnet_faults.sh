#!/bin/bash
# ctest: PLAIN
# `verbena fabric fault` makes nodes of a subnet hang, makes cables lossy, slow or flapping, and changes MTUs and
# P_Keys.  OpenSM, Debian's tools and programs must see the same effects as on a real subnet.
unset VERBENA_LINK
source "$VB_SOURCE/tests/system/lib.sh"
source "$VB_SOURCE/tests/system/lib_faults.sh"
need opensm ibstat perfquery smpquery ibv_devinfo ibv_asyncwatch ibv_rc_pingpong rping python3 ss

cat >"$work/two.net" <<'NET'
Switch	8 "Left"
[1]	"Hca1"[1]
[3]	"Right"[3]

Switch	8 "Right"
[1]	"Hca2"[1]
[3]	"Left"[3]

Hca	1 "Hca1"
[1]	"Left"[1]

Hca	1 "Hca2"
[1]	"Right"[1]
NET
export TMPDIR=$work
verbena fabric up "$work/two.net" >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"

is_active() { on "$1" ibv_devinfo 2>/dev/null | grep -q 'state:.*PORT_ACTIVE'; }
active_mtu() { on "$1" ibv_devinfo 2>/dev/null | grep -q "active_mtu:[[:space:]]*$2 "; }
port=7400
# start_pair ARGUMENT...: starts a ping-pong between Hca1 and Hca2.
start_pair() {
  port=$((port + 1))
  start_on Hca1 ibv_rc_pingpong "$@" -p $port >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp $port || fail "the server does not listen: $(cat "$work/server")"
  start_on Hca2 ibv_rc_pingpong "$@" -p $port 127.0.0.1 >"$work/client" 2>&1 &
  client=$!
}
# end_pair: ends server and client.
end_pair() {
  end_program $server
  end_program $client
}
retries_exceeded() { grep -q 'transport retry counter exceeded (12)' "$work/client" "$work/server"; }
lid2=$(on Hca2 ibstat | sed -n 's/.*Base lid: *//p')
error_counter() { on Hca1 perfquery "$lid2" 1 2>/dev/null | sed -n "s/^$1:\\.*//p"; }
endless=(-n 100000000 -s 1024)
until_true 20 is_active Hca2 || fail "Hca2 is not active: $(on Hca2 ibstat)"

# ---- a node hangs for a moment, and then for too long
packets_wait() { [ "$(counter late)" -gt 0 ]; }
for node in Hca1 Hca2; do until_true 30 is_member $node || fail "$node: $(verbena sa groups --node $node)"; done
# The requests of rping are repeated for seconds, so a shorter pause must not end the connection.
listens() { VERBENA_FABRIC=two VERBENA_NODE=Hca1 verbena ps | grep -q 'listening.*:7400\b'; }
start_on Hca1 rping -s -a 10.0.0.1 -p 7400 -S 1000 >"$work/server" 2>&1 &
server=$!
until_true 20 listens || fail "the server does not listen: $(cat "$work/server")"
start_on Hca2 rping -c -a 10.0.0.1 -p 7400 -S 1000 >"$work/client" 2>&1 &
client=$!
wait_traffic
for node in Hca2 Right; do
  cause_fault "node $node is paused" node $node paused
  until_true 10 packets_wait || fail "no packet waits: $(verbena fabric show)"
  cause_fault "node $node is on" node $node on
  wait_traffic
done
end_pair
for node in Hca2 Right; do
  cause_fault "node $node is paused" node $node paused
  shows "fault: node $node is paused" || fail "fabric show: $(verbena fabric show)"
  if on Hca1 timeout 20 smpquery -t 100 nodeinfo "$lid2" >"$work/out" 2>&1; then fail "$node answers"; fi
  cause_fault "node $node is on" node $node on
  on Hca1 timeout 20 smpquery nodeinfo "$lid2" >"$work/out" 2>&1 || fail "$node does not answer: $(cat "$work/out")"
done
start_pair "${endless[@]}"
wait_traffic
cause_fault "node Hca2 is paused" node Hca2 paused
until_true 60 retries_exceeded || fail "a node that hangs: $(tail -n 3 "$work/client" "$work/server")"
cause_fault "node Hca2 is on" node Hca2 on
end_pair
echo "paused nodes: ok"

# ---- a lossy cable: the port behind it counts errors
before=$(error_counter PortRcvErrors)
start_pair "${endless[@]}"
wait_traffic
cause_fault "link Right:1 - Hca2:1 loses 5 % of its packets (seed 7)" link Hca2 Right lossy 5 --seed 7
# The cable also loses packets of perfquery, so perfquery may get no answer.
errors_are_counted() { [ "$(error_counter PortRcvErrors)" -gt $((before + 3)) ] && [ "$(error_counter SymbolErrorCounter)" -gt 0 ]; } 2>/dev/null
until_true 30 errors_are_counted || fail "no errors are counted: $(on Hca1 perfquery "$lid2" 1)"
wait_traffic
cause_fault "link Right:1 - Hca2:1 loses nothing" link Hca2 Right lossy 0
wait_traffic
end_pair
echo "lossy cable: ok"

# ---- a slow cable
cause_fault "link Right:1 - Hca2:1 delays packets by 5ms" link Hca2 Right slow 5ms
start_pair -n 50 -s 64
wait $client || fail "a slow cable: $(cat "$work/client")"
wait $server || fail "a slow cable: $(cat "$work/server")"
# The switch reads the clock once for several packets, so each delay may be some microseconds shorter.
python3 - "$work/client" <<'PY' || fail "a slow cable is not slow: $(cat "$work/client")"
import re, sys
us = float(re.search(r'= ([0-9.]+) usec/iter', open(sys.argv[1]).read()).group(1))
sys.exit(0 if us >= 9900 else 1)
PY
cause_fault "link Right:1 - Hca2:1 is not slow" link Hca2 Right slow 0
echo "slow cable: ok"

# ---- a cable flaps: the manager uses it again when it stays up
: >"$work/events"
start_on Hca2 ibv_asyncwatch -d verbena0 >"$work/events" 2>&1 &
watch=$!
has_event() { grep -q "$1" "$work/events"; }
until_true 20 has_event 'async event FD' || fail "ibv_asyncwatch: $(cat "$work/events")"
cause_fault "link Right:1 - Hca2:1 flaps: 200ms down, 3s up" link Hca2 Right flapping 200ms 3s
port_has_flapped() { [ "$(grep -c PORT_ERR "$work/events")" -ge 2 ]; }
until_true 30 port_has_flapped || fail "the port does not flap: $(cat "$work/events")"
cause_fault "link Right:1 - Hca2:1 is up" link Hca2 Right up
until_true 30 is_active Hca2 || fail "the port stays down: $(on Hca2 ibstat)"
echo "flapping cable: ok"

# ---- a cable gets another MTU: the port has that MTU after the manager has configured it, and longer packets are lost
cause_fault "link Right:1 - Hca2:1 has an MTU of 1024 bytes" link Hca2 Right mtu 1024
until_true 30 active_mtu Hca2 1024 || fail "the MTU: $(on Hca2 ibv_devinfo)"
until_true 30 is_active Hca2 || fail "the port stays down: $(on Hca2 ibstat)"
start_pair -n 100 -s 4096 -m 2048
until_true 60 retries_exceeded || fail "too long packets: $(tail -n 3 "$work/client" "$work/server")"
end_pair
start_pair -n 100 -s 4096 -m 1024
wait $client || fail "packets that fit: $(cat "$work/client")"
wait $server || fail "packets that fit: $(cat "$work/server")"
expect_refusal "the MTU of a subnet's link must be 256, 512, 1024, 2048 or 4096" link Hca2 Right mtu 1500
cause_fault "link Right:1 - Hca2:1 has its default MTU" link Hca2 Right mtu default
until_true 30 active_mtu Hca2 2048 || fail "the MTU: $(on Hca2 ibv_devinfo)"
until_true 30 is_active Hca2 || fail "the port stays down: $(on Hca2 ibstat)"
echo "MTU: ok"

# ---- a P_Key is removed, and later added again
start_pair "${endless[@]}"
wait_traffic
pkey=$(on Hca2 smpquery pkeys "$lid2" 1 | sed -n 's/^ *0: *\(0x[0-9a-f]*\).*/\1/p')
! has_event PKEY_CHANGE || fail "events: $(cat "$work/events")"
cause_fault "node Hca2 has lost P_Key $pkey" node Hca2 pkey "$pkey" removed
shows "fault: node Hca2 has lost P_Key $pkey" || fail "fabric show: $(verbena fabric show)"
until_true 10 has_event PKEY_CHANGE || fail "no program gets the event: $(cat "$work/events")"
until_true 60 retries_exceeded || fail "without the P_Key: $(tail -n 3 "$work/client" "$work/server")"
end_pair
cause_fault "node Hca2 has got P_Key $pkey" node Hca2 pkey "$pkey" added
start_pair -n 100
wait $client || fail "with the P_Key: $(cat "$work/client")"
wait $server || fail "with the P_Key: $(cat "$work/server")"
expect_refusal "Left is a switch, and P_Keys can be changed only at HCAs" node Left pkey 0xffff removed
expect_refusal "node Hca2 has no P_Key 0x8123" node Hca2 pkey 0x8123 removed
end_program $watch
verbena fabric down >/dev/null
check_nothing_left
echo "P_Key: ok"
