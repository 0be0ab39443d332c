#!/bin/bash
# `verbena fabric fault` breaks links and nodes of virtual hosts.  Programs must recover, or fail with a reason.
unset VERBENA_LINK
source "$VB_SOURCE/tests/system/lib.sh"
source "$VB_SOURCE/tests/system/lib_faults.sh"
need ibv_devinfo ibstat rping python3 ss

cat >"$work/lab.toml" <<'TOML'
[[hosts]]
name = "a"
rails = [
  { network = "red", addresses = ["10.31.0.1"] },
  { network = "blue", addresses = ["10.31.1.1"] },
]
[[hosts]]
name = "b"
rails = [
  { network = "red", addresses = ["10.31.0.2"] },
  { network = "blue", addresses = ["10.31.1.2"] },
]
TOML
verbena fabric up "$work/lab.toml" >/dev/null

port_is() { on a ibv_devinfo -d "$1" >"$work/devinfo" && grep -q "state:.*$2" "$work/devinfo"; }

# ---- the link of a connection goes down for a moment, and comes up again
start_on a rping -s -a 10.31.0.1 -p 7200 -S 20000 -V >"$work/server" 2>&1 &
wait_listens a 7200
start_on b rping -c -a 10.31.0.1 -p 7200 -S 20000 -V >"$work/client" 2>&1 &
client=$!
wait_traffic
cause_fault "link b:verbena0 - red is down" link b red down
shows "fault: link b:verbena0 - red is down" || fail "fabric show: $(verbena fabric show)"
has_dropped_packets() { [ "$(counter dropped_link_down)" -gt 0 ]; }
until_true 10 has_dropped_packets || fail "nothing is dropped: $(verbena fabric show)"
cause_fault "link b:verbena0 - red is up" link red b up
! shows fault: || fail "fabric show: $(verbena fabric show)"
wait_traffic
echo "link down and up: ok"

# ---- a link is lossy, and RC sends lost packets again
cause_fault "link b:verbena0 - red loses 2 % of its packets (seed 7)" link b red lossy 2 --seed 7
shows "fault: link b:verbena0 - red loses 2 % of its packets (seed 7)" || fail "fabric show: $(verbena fabric show)"
before=$(counter dropped_lossy_link)
has_lost_packets() { [ "$(counter dropped_lossy_link)" -gt $((before + 5)) ]; }
until_true 60 has_lost_packets || fail "nothing is lost: $(verbena fabric show)"
wait_traffic
cause_fault "link b:verbena0 - red loses nothing" link b red lossy 0
wait_traffic
kill "$client"
wait "$client" || true
echo "lossy link: ok"

# ---- programs see the state of their ports, and get the reason why an address cannot be reached
port_is verbena0 PORT_ACTIVE || fail "the port is not active: $(on a ibv_devinfo)"
cause_fault "link a:verbena0 - red is down" link a:verbena0 red down
port_is verbena0 PORT_DOWN || fail "the port is not down: $(on a ibv_devinfo)"
port_is verbena1 PORT_ACTIVE || fail "the other port is down, too: $(on a ibv_devinfo)"
if on a timeout 20 rping -c -a 10.31.0.2 -C 1 >"$work/out" 2>&1; then fail "rping works without a link"; fi
grep -q "rail verbena0 of host a .* is down: its link is down because of 'verbena fabric fault'" "$work/out" ||
  fail "rping without a link: $(cat "$work/out")"
cause_fault "node a is off, and disconnected from its networks" node a off
port_is verbena1 PORT_DOWN || fail "a host that is off has a port: $(on a ibv_devinfo)"
cause_fault "link a:verbena0 - red has a cable, but its host is off" link a red up
cause_fault "node a is on" node a on
port_is verbena0 PORT_ACTIVE && port_is verbena1 PORT_ACTIVE || fail "the ports stay down: $(on a ibv_devinfo)"
verbena fabric log >"$work/log"
grep -q 'node a is off' "$work/log" || fail "faults are not in the log: $(cat "$work/log")"
echo "ports: ok"

# ---- faults of links and nodes that do not exist are refused
expect_refusal "there is no host 'x'" link x red down
expect_refusal "there is no link between 'a' and the network 'green'; there are: a:verbena0 - red, a:verbena1 - blue" \
  link a green down
expect_refusal "there is no host 'x'" node x off
expect_refusal "the fabric 'y' is not up" node a off --name y
verbena fabric down >/dev/null

# ---- faults in a subnet without a manager, where each port is in the state Down or Init
cat >"$work/two.net" <<'EOF'
Switch	8 "Switch1"
[1]	"Hca1"[1]
[2]	"Hca2"[1]
[3]	"Switch2"[3]
[4]	"Switch2"[4]

Switch	8 "Switch2"
[3]	"Switch1"[3]
[4]	"Switch1"[4]

Hca	1 "Hca1"
[1]	"Switch1"[1]

Hca	1 "Hca2"
[1]	"Switch1"[2]
EOF
verbena fabric up "$work/two.net" --sm none >/dev/null
state_is() { verbena run --node "$1" -- ibstat >"$work/ibstat" && grep -q "State: $2" "$work/ibstat"; }
state_is Hca1 Initializing || fail "Hca1: $(verbena run --node Hca1 -- ibstat)"
cause_fault "link Switch1:1 - Hca1:1 is down" link Switch1:1 Hca1 down
state_is Hca1 Down || fail "Hca1 without its cable: $(verbena run --node Hca1 -- ibstat)"
cause_fault "node Switch1 is off" node Switch1 off
state_is Hca2 Down || fail "Hca2 without its switch: $(verbena run --node Hca2 -- ibstat)"
shows "fault: node Switch1 is off" && shows "fault: link Switch1:1 - Hca1:1 is down" || fail "$(verbena fabric show)"
cause_fault "link Switch1:1 - Hca1:1 has a cable, but is not up: a node is off, or a port is disabled" link Hca1 Switch1 up
cause_fault "node Switch1 is on" node Switch1 on
state_is Hca1 Initializing && state_is Hca2 Initializing || fail "the ports stay down"
expect_refusal "several links join 'Switch1' and 'Switch2', so name a port (NAME:PORT)" link Switch1 Switch2 down
expect_refusal "no link joins 'Hca1' and 'Hca2'; 'Hca1' has: Switch1:1 - Hca1:1" link Hca1 Hca2 down
expect_refusal "'Hca1' has no port '2'" link Hca1:2 Switch1 down
expect_refusal "there is no node 'Hca9'" node Hca9 off
cause_fault "link Switch1:1 - Hca1:1 loses 5 % of its packets (seed 1)" link Hca1 Switch1 lossy 5
verbena fabric down >/dev/null
check_nothing_left
echo "subnet: ok"
