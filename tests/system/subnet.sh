#!/bin/bash
# Debian's OpenSM must configure a simulated subnet of three hosts and one switch.  Debian's diagnostic tools must show
# the subnet that the netlist describes.
source "$VB_SOURCE/tests/system/lib.sh"
need opensm ibnetdiscover ibstat smpquery saquery sminfo perfquery ibtracert iblinkinfo ibping

cat >"$work/net" <<'EOF'
Switch	8 "Switch1"
[1]	"Hca1"[1]
[2]	"Hca2"[1]
[3]	"Hca3"[1]

Hca	1 "Hca1"
[1]	"Switch1"[1]

Hca	1 "Hca2"
[1]	"Switch1"[2]

Hca	1 "Hca3"
[1]	"Switch1"[3]
EOF

verbena fabric up "$work/net" --name subnet --sm none >"$work/up" || fail "the fabric does not come up"
grep -q "fabric 'subnet' is up: 3 HCAs, 1 switch, 3 links" "$work/up" || fail "fabric up prints: $(cat "$work/up")"

# on NODE COMMAND...: runs an unmodified program on a node of the subnet.
on() { verbena run --node "$1" -- "${@:2}"; }
# expect_output NODE PATTERN COMMAND...: runs a command on the node, which must succeed and print the pattern.
expect_output() {
  on "$1" timeout 30 "${@:3}" >"$work/out" 2>&1 || fail "${*:3} on $1 ends with $?: $(cat "$work/out")"
  grep -qE "$2" "$work/out" || fail "${*:3} on $1 does not print '$2': $(cat "$work/out")"
}

# Without a manager, ports are in the state Init, and only directed routes work.
expect_output Hca1 'State: Initializing' ibstat
expect_output Hca1 'NodeType:.*Channel Adapter' smpquery -D nodeinfo 0
expect_output Hca1 'NodeType:.*Switch' smpquery -D nodeinfo 0,1
expect_output Hca1 'NodeType:.*Channel Adapter' smpquery -D nodeinfo 0,1,3

mkdir "$work/osm"
export OSM_TMP_DIR=$work/osm OSM_CACHE_DIR=$work/osm
start run --node Hca1 -- opensm -f "$work/osm/log" -s 0 >"$work/opensm.out" 2>&1 &
opensm=$!
# OpenSM buffers the line SUBNET UP of its log, so the test looks at the ports instead.
is_active() { on "$1" ibstat | grep -q 'State: Active'; }
until_true 30 is_active Hca3 && until_true 10 is_active Hca1 && until_true 10 is_active Hca2 ||
  fail "the ports do not become active: $(cat "$work/opensm.out" "$work/osm/log")"

expect_output Hca2 'State: Active' ibstat
expect_output Hca1 'Capability mask: 0x[0-9a-f]*[2367abef]$' ibstat  # IsSM
expect_output Hca2 'sm lid 1 .*state 3 SMINFO_MASTER' sminfo
expect_output Hca2 'Hca3' ibnetdiscover
# The output of ibnetdiscover is a netlist of the same subnet.
verbena fabric check "$work/out" | grep -q '3 HCAs, 1 switch, 3 links' || fail "ibnetdiscover: $(cat "$work/out")"
for node in Hca1 Hca2 Hca3; do
  grep -qE "^\[[123]\].*# \"$node\" lid" "$work/out" || fail "ibnetdiscover lacks $node: $(cat "$work/out")"
done
expect_output Hca2 'Ca.*Hca1' ibhosts
[ "$(grep -c '^Ca' "$work/out")" = 3 ] || fail "ibhosts: $(cat "$work/out")"
expect_output Hca2 'Switch.*Switch1' ibswitches
expect_output Hca3 'Active/' iblinkinfo
lid() { on "$1" ibstat | sed -n 's/.*Base lid: //p'; }
expect_output Hca1 'Lid:\.+' smpquery portinfo "$(lid Hca3)" 1
expect_output Hca1 'PortXmitPkts' perfquery "$(lid Hca2)" 1
expect_output Hca1 "Hca2" ibtracert "$(lid Hca1)" "$(lid Hca2)"

# Answers with several records must be complete.  (With ibsim they are not.)
expect_output Hca2 NodeRecord saquery
[ "$(grep -c NodeRecord "$work/out")" = 4 ] || fail "saquery shows not 4 nodes: $(cat "$work/out")"
expect_output Hca2 PathRecord saquery -p
[ "$(grep -c 'PathRecord dump' "$work/out")" -ge 9 ] || fail "saquery -p shows too few paths: $(cat "$work/out")"

# Programs on two nodes must be able to exchange MADs.
start run --node Hca3 -- ibping -S >"$work/ibping.out" 2>&1 &
server=$!
lid3=$(lid Hca3)
# The first pings may be lost, because the server registers for them only after it has started.
pings() { on Hca1 timeout 10 ibping -c 3 "$lid3" >"$work/out" 2>&1 && grep -q '3 packets transmitted, 3 received' "$work/out"; }
until_true 30 pings || fail "ibping: $(cat "$work/out")"
kill $server

# After a manager is killed, its port must no longer have the capability IsSM.
kill -KILL $opensm
wait $opensm || true
no_manager() { on Hca1 ibstat | grep -qE 'Capability mask: 0x[0-9a-f]*[014589cd]$'; }
until_true 10 no_manager || fail "the port of a killed manager has IsSM set: $(on Hca1 ibstat)"

# A program that runs on a node must get an error after the fabric has ended.
on Hca1 bash -c '"$1" fabric down && ibstat' - "$VB_PREFIX/bin/verbena" >"$work/out" 2>&1 || true
grep -q "fabric 'subnet' has no node 'Hca1'" "$work/out" || fail "ibstat does not say why: $(cat "$work/out")"
! grep -q 'CA ' "$work/out" || fail "ibstat finds a fabric that is down: $(cat "$work/out")"
