#!/bin/bash
# Verbs programs run on the nodes of a simulated InfiniBand subnet.  Their packets must follow the routes of Debian's
# OpenSM: through one switch or two switches, and by another cable after the cable in the path is disabled.  Limited
# members of the partition must not reach each other.
source "$VB_SOURCE/tests/system/lib.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm ibstat ibportstate perfquery smpquery ibtracert ibswitches
need ibv_devinfo ibv_rc_pingpong ibv_ud_pingpong ib_send_bw tshark python3 ss

cat >"$work/net" <<'EOF'
Switch	8 "Left"
[1]	"Hca1"[1]
[2]	"Hca2"[1]
[3]	"Right"[3]
[4]	"Right"[4]

Switch	8 "Right"
[1]	"Hca3"[1]
[2]	"Hca4"[1]
[3]	"Left"[3]
[4]	"Left"[4]

Hca	1 "Hca1"
[1]	"Left"[1]

Hca	1 "Hca2"
[1]	"Left"[2]

Hca	1 "Hca3"
[1]	"Right"[1]

Hca	1 "Hca4"
[1]	"Right"[2]
EOF

verbena fabric up "$work/net" --name cross --sm none >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
on() { verbena run --fabric cross --node "$1" --verbose -- "${@:2}"; }
start_on() { start run --fabric cross --node "$1" --verbose -- "${@:2}"; }
listens_tcp() { ss -ltnH "sport = :$1" | grep -q .; }
port=18600
# run_pair NAME SERVER_NODE CLIENT_NODE PROGRAM...: runs a server and its client, which must both succeed.  They
# exchange the numbers of their queue pairs by TCP over this machine's loopback interface.
run_pair() {
  local server
  port=$((port + 1))
  start_on "$2" timeout 60 "${@:4}" -p $port >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp $port || fail "$1: the server does not listen: $(cat "$work/server")"
  on "$3" timeout 60 "${@:4}" -p $port 127.0.0.1 >"$work/client" 2>&1 ||
    fail "$1: the client ends with $?: $(tail -5 "$work/client")"
  wait $server || fail "$1: the server: $(tail -5 "$work/server")"
}

# ---- before a manager starts
on Hca1 ibv_devinfo -v >"$work/out" 2>&1 || fail "ibv_devinfo: $(cat "$work/out")"
grep -q 'state:.*PORT_INIT' "$work/out" && grep -q 'link_layer:.*InfiniBand' "$work/out" ||
  fail "before a manager, ibv_devinfo prints: $(cat "$work/out")"
grep -q 'no subnet manager has configured it' "$work/out" || fail "no message gives the reason: $(cat "$work/out")"

# ---- after a manager has started
mkdir "$work/osm"
export OSM_TMP_DIR=$work/osm OSM_CACHE_DIR=$work/osm
# Limited members of a partition can exchange packets only with full members.  Hca1 and Hca3 are full members.
guid3=$(on Hca3 ibstat 2>/dev/null | sed -n 's/.*Port GUID: *//p')
echo "Default=0x7fff: ALL=limited, SELF=full, $guid3=full;" >"$work/partitions"
start run --fabric cross --node Hca1 -- opensm -f "$work/osm/log" -s 1 -P "$work/partitions" >"$work/opensm.out" 2>&1 &
opensm=$!
is_active() { on "$1" ibv_devinfo 2>&1 | grep -q 'state:.*PORT_ACTIVE'; }
for node in Hca1 Hca2 Hca3 Hca4; do
  until_true 30 is_active $node || fail "the port of $node stays inactive: $(cat "$work/opensm.out" "$work/osm/log")"
done
# ibv_devinfo and ibstat must show the same values, although ibv_devinfo gets them from the agent, and ibstat from the
# service for libibumad.
on Hca3 ibstat >"$work/ibstat"
on Hca3 ibv_devinfo -v >"$work/out"
ibstat_value() { sed -n "s/^.*$1: *//p" "$work/ibstat" | tail -1; }
lid3=$(ibstat_value 'Base lid')
grep -qE "port_lid:\s+$lid3\$" "$work/out" || fail "not LID $lid3: $(cat "$work/out")"
grep -qE "sm_lid:\s+$(ibstat_value 'SM lid')\$" "$work/out" || fail "another SM LID than ibstat: $(cat "$work/out")"
grep -qi "port_cap_flags:\s*$(ibstat_value 'Capability mask')" "$work/out" || fail "another mask: $(cat "$work/out")"
guid=$(ibstat_value 'Port GUID' | sed 's/0x//; s/..../&:/g; s/:$//')
grep -q "GID\[ *0\]:.*fe80:0000:0000:0000:$guid" "$work/out" || fail "not the GID of $guid: $(cat "$work/out")"

# ---- programs
run_pair "RC, one switch" Hca1 Hca2 ibv_rc_pingpong -n 500
run_pair "RC, two switches" Hca1 Hca3 ibv_rc_pingpong -n 500 -c
run_pair "RC with a GRH" Hca1 Hca3 ibv_rc_pingpong -n 500 -c -g 0
run_pair "RC by events" Hca1 Hca3 ibv_rc_pingpong -n 100 -e
run_pair "RC on one node" Hca1 Hca1 ibv_rc_pingpong -n 500 -c
run_pair "UD, two switches" Hca1 Hca3 ibv_ud_pingpong -n 500
run_pair "UD with a GRH" Hca1 Hca3 ibv_ud_pingpong -n 500 -g 0

# Two limited members must not reach each other.  OpenSM has configured the switch at the receiver to drop and count
# their packets, and to send a trap to the manager.
switch_lid() { on Hca1 ibswitches | sed -n "s/.*\"$1\".* lid \([0-9]*\) .*/\1/p"; }
right=$(switch_lid Right)
violations() { on Hca1 perfquery "$right" 2 | sed -n 's/^PortXmitConstraintErrors:\.*//p'; }
[ "$(violations)" = 0 ] || fail "the switch has counted $(violations) violations"
start_on Hca4 timeout 60 ibv_rc_pingpong -n 5 -p 18589 >"$work/server" 2>&1 &
server=$!
until_true 20 listens_tcp 18589 || fail "the server does not listen: $(cat "$work/server")"
! on Hca2 timeout 60 ibv_rc_pingpong -n 5 -p 18589 127.0.0.1 >"$work/client" 2>&1 || fail "limited members reach each other"
grep -q 'transport retry counter exceeded' "$work/client" ||
  fail "the client does not fail as on a lost path: $(cat "$work/client")"
kill $server
wait $server || true
[ "$(violations)" -gt 0 ] || fail "no violation is counted"
is_reported() { on Hca1 smpquery portinfo "$lid3" 1 >/dev/null && grep -q 'num:259' "$work/osm/log"; }
until_true 10 is_reported || fail "OpenSM has received no trap 259: $(tail -5 "$work/osm/log")"

# The counters of ports must count the packets of programs.
packets() { on Hca1 perfquery -x "$1" 1 | sed -n 's/^PortRcvPkts:\.*//p'; }
before=$(packets "$lid3")
run_pair "RC for the counters" Hca1 Hca3 ibv_rc_pingpong -n 500
after=$(packets "$lid3")
[ $((after - before)) -ge 500 ] || fail "500 messages increased the counter of packets only from $before to $after"

# tshark reads the LIDs in a capture.  The agent's requests to the SA may be among the packets.  The SA is on the same
# node, so such packets have the same LID twice.
start run --fabric cross --node Hca1 --pcap "$work/pcap" -- timeout 60 ibv_rc_pingpong -n 5 -p 18590 \
  >"$work/server" 2>&1 &
server=$!
until_true 20 listens_tcp 18590 || fail "the captured server does not listen"
on Hca3 timeout 60 ibv_rc_pingpong -n 5 -p 18590 127.0.0.1 >"$work/client" 2>&1 || fail "$(cat "$work/client")"
wait $server
lid1=$(on Hca1 ibstat | sed -n 's/.*Base lid: //p')
tshark -r "$work/pcap" -T fields -e infiniband.lrh.slid -e infiniband.lrh.dlid >"$work/lids" 2>/dev/null
python3 - "$work/lids" "$lid1" "$lid3" <<'EOF' || fail "LIDs of the capture: $(sort "$work/lids" | uniq -c)"
import sys
pairs = {tuple(int(x, 0) for x in line.split()) for line in open(sys.argv[1])}
a, b = int(sys.argv[2]), int(sys.argv[3])
sys.exit(pairs - {(a, a)} != {(a, b), (b, a)})
EOF

# ---- the link in the path is disabled while data flows; 8 tries of 2 s (-u 19) last until OpenSM finds another path
start_on Hca3 timeout 60 ib_send_bw -F -u 19 -p 18591 -D 4 -s 4096 >"$work/server" 2>&1 &
server=$!
until_true 20 listens_tcp 18591 || fail "ib_send_bw does not listen: $(cat "$work/server")"
start_on Hca1 timeout 60 ib_send_bw -F -u 19 -p 18591 -D 4 -s 4096 127.0.0.1 >"$work/client" 2>&1 &
client=$!
has_moved_data() { [ "$(packets "$lid3")" -gt $((after + 1000)) ]; }
until_true 20 has_moved_data || fail "ib_send_bw moves no data: $(cat "$work/client")"
# ibtracert prints a line for each switch of the route, such as: [1] -> switch port {0x...}[1] lid 3-3 "Left"
egress=$(on Hca1 ibtracert "$lid1" "$lid3" | sed -n 's/^\[\([34]\)\] -> switch.*/\1/p' | head -1)
[ -n "$egress" ] || fail "no route from LID $lid1 to $lid3: $(on Hca1 ibtracert "$lid1" "$lid3")"
on Hca2 ibportstate "$(switch_lid Left)" "$egress" disable >"$work/out" 2>&1 || fail "ibportstate: $(cat "$work/out")"
is_rerouted() { on Hca1 ibtracert "$lid1" "$lid3" 2>/dev/null | grep -qE "^\[$((7 - egress))\] -> switch"; }
until_true 20 is_rerouted || fail "OpenSM does not reroute: $(cat "$work/osm/log")"
wait $client || fail "ib_send_bw does not survive a new route: $(cat "$work/client")"
wait $server || fail "the server of ib_send_bw: $(cat "$work/server")"

kill $opensm
wait $opensm || true
verbena fabric down cross >"$work/down" || fail "the fabric does not go down"
