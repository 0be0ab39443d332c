#!/bin/bash
# ctest: PLAIN
# A fabric must come up from what ibnetdiscover prints about a real cluster.  There, a description has the name of the
# host and of the device, several nodes may share a description, and there may be a router.  Each node must be found by
# its name, its description and its GUID, and the fabric's own output of ibnetdiscover must be the same fabric.
# The test is PLAIN because `fabric up` starts OpenSM without the sanitizer's runtime.
source "$VB_SOURCE/tests/system/lib.sh"
need opensm ibnetdiscover ibstat saquery

cat >"$work/dump" <<'EOT'
src/query_smp.c:228; umad (DR path slid 0; dlid 0; 0,1,8 Attr 0x11:0) bad status 110; Connection timed out
ibwarn: [4711] mad_rpc: _do_madrpc failed; dport (DR path slid 0; dlid 0; 0,1,8)
#
# Topology file: generated on Mon Mar  2 10:11:12 2020
#
# Initiated from node 0c42a10300aa0100 port 0c42a10300aa0100

Non-Chassis Nodes

vendid=0x2c9
devid=0xd2f0
sysimgguid=0xc42a10300ee0000
switchguid=0xc42a10300ee0000(c42a10300ee0000)
Switch	41 "S-0c42a10300ee0000"		# "MF0;rack-7:MQM8700/U1" enhanced port 0 lid 9 lmc 0
[1]	"H-0c42a10300aa0100"[1](c42a10300aa0100) 		# "cn01.lab mlx5_0" lid 1 4xHDR
[2]	"H-0c42a10300aa0200"[1](c42a10300aa0200) 		# "twin" lid 2 2xNDR
[3]	"H-0c42a10300aa0300"[1](c42a10300aa0300) 		# "twin" lid 3 4xXDR
[20]	"R-0c42a10300bb0000"[1](c42a10300bb0001) 		# "gateway" lid 7 4xFDR10

vendid=0x2c9
devid=0x101b
sysimgguid=0xc42a10300aa0100
caguid=0xc42a10300aa0100
Ca	1 "H-0c42a10300aa0100"		# "cn01.lab mlx5_0"
[1](c42a10300aa0100) 	"S-0c42a10300ee0000"[1]		# lid 1 lmc 0 "MF0;rack-7:MQM8700/U1" lid 9 4xHDR

caguid=0xc42a10300aa0200
Ca	1 "H-0c42a10300aa0200"		# "twin"
[1](c42a10300aa0200) 	"S-0c42a10300ee0000"[2]		# lid 2 lmc 0 "MF0;rack-7:MQM8700/U1" lid 9 2xNDR

caguid=0xc42a10300aa0300
Ca	1 "H-0c42a10300aa0300"		# "twin"
[1](c42a10300aa0300) 	"S-0c42a10300ee0000"[3]		# lid 3 lmc 0 "MF0;rack-7:MQM8700/U1" lid 9 4xXDR

rtguid=0xc42a10300bb0000
Rt	2 "R-0c42a10300bb0000"		# "gateway"
[1](c42a10300bb0001) 	"S-0c42a10300ee0000"[20]		# lid 7 lmc 0 "MF0;rack-7:MQM8700/U1" lid 9 4xFDR10
EOT

verbena fabric up "$work/dump" --name cluster --sm 'cn01.lab mlx5_0' >"$work/up" || fail "the fabric does not come up"
grep -q "'cluster' is up: 3 HCAs, 1 switch, 1 router, 4 links; managed by OpenSM on cn01-lab-mlx5_0" "$work/up" ||
  fail "fabric up prints: $(cat "$work/up")"
verbena fabric show cluster >"$work/show"
grep -q '^cn01-lab-mlx5_0 *cn01.lab mlx5_0 ' "$work/show" || fail "fabric show: $(cat "$work/show")"
grep -q '^H-0c42a10300aa0300 *twin ' "$work/show" || fail "fabric show: $(cat "$work/show")"

guid_of() { verbena run --node "$1" -- ibstat -p; }
for node in cn01-lab-mlx5_0 'cn01.lab mlx5_0' 0xc42a10300aa0100 H-0c42a10300aa0100; do
  [ "$(guid_of "$node")" = 0x0c42a10300aa0100 ] || fail "--node '$node' is not found"
done
[ "$(guid_of 0xc42a10300aa0200)" = 0x0c42a10300aa0200 ] || fail "a node with a description of two nodes is not found"
! guid_of twin 2>"$work/err" || fail "--node takes a description of two nodes"
grep -q "several hosts with the description 'twin': H-0c42a10300aa0200, H-0c42a10300aa0300" "$work/err" ||
  fail "--node twin: $(cat "$work/err")"
verbena fabric fault link twin:1 'MF0;rack-7:MQM8700/U1' down 2>"$work/err" && fail "a fault takes a description of two nodes"
verbena fabric fault link 'cn01.lab mlx5_0' 'MF0;rack-7:MQM8700/U1:1' up >/dev/null || fail "a fault does not take descriptions"

# The link of an XDR port is NDR for OpenSM, which does not know XDR.
verbena run --node 0xc42a10300aa0300 -- ibstat | grep -q '^[[:space:]]*Rate: 800$' || fail "the rate of 4xXDR is not 800"
verbena run --node 0xc42a10300aa0200 -- ibstat | grep -q '^[[:space:]]*Rate: 200$' || fail "the rate of 2xNDR is not 200"
verbena run --node cn01-lab-mlx5_0 -- saquery --smkey 1 NR >"$work/nodes" || fail "saquery: $(cat "$work/nodes")"
[ "$(grep -c 'node_type.*Router' "$work/nodes")" = 2 ] || grep -qi 'router' "$work/nodes" || fail "OpenSM knows no router: $(cat "$work/nodes")"

verbena run --node cn01-lab-mlx5_0 -- ibnetdiscover -g >"$work/own" || fail "ibnetdiscover -g: $(cat "$work/own")"
verbena fabric down cluster >/dev/null
verbena fabric up "$work/own" --name again --sm none >"$work/up" || fail "the fabric's own dump: $(cat "$work/own")"
grep -q "'again' is up: 3 HCAs, 1 switch, 1 router, 4 links" "$work/up" || fail "fabric up prints: $(cat "$work/up")"
names() { awk '/^(cn|H-)/ { print $1 }' "$1" | sort; }
verbena fabric show again >"$work/show2"
[ "$(names "$work/show")" = "$(names "$work/show2")" ] || fail "other names: $(cat "$work/show2")"
verbena fabric down again >/dev/null
