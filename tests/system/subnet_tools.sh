#!/bin/bash
# ctest: PLAIN
# Debian's diagnostic tools for single nodes, routes and tables of a subnet must agree with its netlist and with
# OpenSM's tables: addresses, linear and multicast forwarding tables, traces, raw SMPs.  ibsysstat must work in both
# directions.  No node has congestion control, so requests for it must be refused.  The test is PLAIN because
# `fabric up` starts OpenSM without the sanitizer's runtime, which must be preloaded into it.
source "$VB_SOURCE/tests/system/lib.sh"
need opensm ibaddr ibccquery ibroute ibstat ibstatus ibsysstat ibtracert smpdump smpquery dump_fts ibnodes ibidsverify \
  ibqueryerrors python3

cat >"$work/net" <<'END'
Switch	8 "Left"
[1]	"Hca1"[1]
[2]	"Hca2"[1]
[3]	"Right"[3]

Switch	8 "Right"
[1]	"Hca3"[1]
[3]	"Left"[3]

Hca	1 "Hca1"
[1]	"Left"[1]

Hca	1 "Hca2"
[1]	"Left"[2]

Hca	1 "Hca3"
[1]	"Right"[1]
END
verbena fabric up "$work/net" --name tools >"$work/up" 2>&1 || fail "the fabric does not come up: $(cat "$work/up")"
on() { verbena run --fabric tools --node "$1" -- "${@:2}"; }
# run NODE COMMAND...: runs the command on the node, with its output in "out"; fails the test if the command fails.
run() { on "$1" timeout 30 "${@:2}" >"$work/out" 2>&1 || fail "${*:2} on $1 ends with $?: $(cat "$work/out")"; }
output_has() { grep -qE "$1" "$work/out" || fail "no '$1' in: $(cat "$work/out")"; }
output_is() { [ "$(cat "$work/out")" = "$1" ] || fail "not '$1' but: $(cat "$work/out")"; }
lid() { on "$1" ibstat | sed -n 's/.*Base lid: //p'; }
guid() { on "$1" ibstat | sed -n 's/.*Port GUID: //p'; }

lid1=$(lid Hca1) lid2=$(lid Hca2) lid3=$(lid Hca3)
run Hca1 ibnodes
[ "$(wc -l <"$work/out")" = 5 ] || fail "not 5 nodes: $(cat "$work/out")"
left=$(sed -n 's/^Switch.*"Left".* lid \([0-9]*\) .*/\1/p' "$work/out")
right=$(sed -n 's/^Switch.*"Right".* lid \([0-9]*\) .*/\1/p' "$work/out")
run Hca1 ibidsverify
# All three nodes join the IPoIB broadcast group, whose MLID is the first one.  Right forwards the group's packets by
# two ports.
all_are_members() {
  run Hca1 ibroute -M "$left" && grep -qE '^0xc000 +x +x +x' "$work/out" &&
    run Hca1 ibroute -M "$right" && grep -q '^0xc000 .*x.*x' "$work/out"
}
until_true 20 all_are_members || fail "not all nodes are members: $(cat "$work/out")"
# Reset the counters, because they count packets that were dropped while the manager activated the ports.
on Hca1 ibqueryerrors -k >"$work/out" 2>&1 || true
run Hca1 ibqueryerrors
output_has '5 nodes checked, 0 bad nodes found'

# ---- addresses: of the node itself, by LID, by GUID, by a directed route
hex=$(printf '0x%x' "$lid3")
run Hca3 ibaddr
output_has "^GID fe80::.* LID start $hex end $hex\$"
cp "$work/out" "$work/address"
for by in "$lid3" "-G $(guid Hca3)" "-D 0,1,3,1"; do
  # shellcheck disable=SC2086
  run Hca1 ibaddr $by
  cmp -s "$work/out" "$work/address" || fail "ibaddr $by: $(cat "$work/out" "$work/address")"
done
# Unlike other tools, ibstatus reads the files in /sys.
verbena run --fabric tools --node Hca3 --sysfs -- ibstatus >"$work/out" 2>&1 || fail "ibstatus: $(cat "$work/out")"
output_has "base lid:.*$hex\$"
output_has 'link_layer:.*InfiniBand'
show_files='cd /sys/class; cat infiniband/verbena0/node_desc infiniband_mad/umad0/ibdev infiniband_mad/umad0/port \
infiniband_mad/issm0/ibdev infiniband_mad/abi_version; ls /dev/infiniband'
verbena run --fabric tools --node Hca3 --sysfs -- sh -c "$show_files" 2>&1 | tr '\n' ' ' >"$work/out"
grep -q '^Hca3 verbena0 1 verbena0 5 issm0 umad0 uverbs0 $' "$work/out" || fail "the files of a node: $(cat "$work/out")"
echo "addresses: ok"

# ---- forwarding tables, and the same tables as raw SMPs
run Hca2 ibroute "$left"
for route in "$lid1 001" "$lid2 002" "$lid3 003" "$right 003"; do
  output_has "^0x$(printf '%04x' "${route% *}") ${route#* } "
done
output_has '^5 valid lids dumped'
run Hca2 ibroute -D 0,1,3
for route in "$lid1 003" "$lid2 003" "$lid3 001" "$left 003"; do
  output_has "^0x$(printf '%04x' "${route% *}") ${route#* } "
done
run Hca1 dump_fts
[ "$(grep -c '^Unicast lids' "$work/out")" = 2 ] && [ "$(grep -c '5 valid lids dumped' "$work/out")" = 2 ] ||
  fail "dump_fts: $(cat "$work/out")"
run Hca1 dump_fts -M
[ "$(grep -c '^0xc000 .*x' "$work/out")" = 2 ] || fail "dump_fts -M: $(cat "$work/out")"
run Hca1 smpdump "$left" 0x19 0  # LinearForwardingTable, the first block: the port of each LID
python3 - "$work/out" "$lid1" 1 "$lid2" 2 "$lid3" 3 "$left" 0 <<'END' || fail "the raw table: $(cat "$work/out")"
import sys
table = bytes.fromhex(open(sys.argv[1]).read().split("SMP")[0].replace("\n", ""))
wanted = [int(x) for x in sys.argv[2:]]
sys.exit(any(table[lid] != port for lid, port in zip(wanted[::2], wanted[1::2])))
END
run Hca1 smpdump -s -D 0,1,3 0x10  # NodeDescription, as text
output_has 'Right'
echo "tables: ok"

# ---- traces
run Hca1 ibtracert "$lid2" "$lid3"
sed -nE 's/^(From|To) ca .*"(.*)"$/\2/p; s/^\[([0-9]+)\] -> (switch|ca) port .*\[([0-9]+)\] lid .* "(.*)"$/\1 \4 \3/p' \
  "$work/out" >"$work/trace"
[ "$(paste -sd, "$work/trace")" = 'Hca2,1 Left 2,3 Right 3,1 Hca3 1,Hca3' ] || fail "ibtracert: $(cat "$work/out")"
run Hca1 ibtracert -G "$(guid Hca2)" "$(guid Hca3)"
output_has 'To ca .*"Hca3"'
if on Hca1 timeout 30 ibtracert "$lid2" 999 >"$work/out" 2>&1; then fail "ibtracert finds a LID that no port has"; fi
echo "traces: ok"

# ---- ibsysstat, which is a client and a server of a vendor class
serves_cpu() { on "$1" timeout 10 ibsysstat "$2" cpu >"$work/out" 2>&1 && grep -q '^cpu 0: ' "$work/out"; }
for pair in "Hca1 Hca3 $lid3" "Hca3 Hca1 $lid1"; do
  read -r client server to <<<"$pair"
  start run --fabric tools --node "$server" -- ibsysstat -S >"$work/server" 2>&1 &
  pid=$!
  # The server listens when it answers with data.  Before that, its node answers that it does not support the class, and
  # ibsysstat takes that answer to a ping for a success.
  until_true 20 serves_cpu "$client" "$to" || fail "ibsysstat cpu: $(cat "$work/out" "$work/server")"
  run "$client" ibsysstat "$to"
  output_is 'sysstat ping succeeded'
  run "$client" ibsysstat "$to" host
  output_has "^$(hostname)"
  kill $pid
  wait $pid || true
done
echo "ibsysstat: ok"

# ---- requests for congestion control are refused at once; without an answer, the tool would wait 3 times for 5 s
for to in "$lid3" "$left"; do
  before=$SECONDS
  if on Hca1 timeout 30 ibccquery --timeout 5000 CongestionInfo "$to" >"$work/out" 2>&1; then
    fail "LID $to has congestion control: $(cat "$work/out")"
  fi
  output_has 'congestion info query failed'
  [ $((SECONDS - before)) -lt 12 ] || fail "LID $to does not answer requests for congestion control"
done
echo "congestion control: ok"
verbena fabric down tools >"$work/down" || fail "the fabric does not go down"
