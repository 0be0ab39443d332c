#!/bin/bash
# A program causes faults in fabrics with the C++ API (tests/api/faults.cc), and files cause faults at given times.
# Both must have the same effects as the command `verbena fabric fault`.
unset VERBENA_LINK
source "$VB_SOURCE/tests/system/lib.sh"
need python3 ss

shows() { verbena fabric show >"$work/show" && grep -qF "$1" "$work/show"; }
# cause_faults ARGUMENT...: runs the program, which causes faults in the fabric that is up.
cause_faults() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    timeout 30 "$VB_PREFIX/tests/api/faults" "$@" >"$work/output" 2>&1 || fail "faults $*: exit $?: $(cat "$work/output")"
  [ "$(cat "$work/output")" = "all good" ] || fail "faults $*: $(cat "$work/output")"
}

# ---- the C++ API
verbena fabric make --hosts 2 >"$work/lab.toml"
verbena fabric up "$work/lab.toml" >/dev/null
cause_faults lab a net0 b
shows "fault: node b is paused" && shows "fault: link a:verbena0 - net0 delays packets by 1500us" ||
  fail "fabric show: $(verbena fabric show)"
verbena fabric down >/dev/null
verbena fabric make --hosts 2 --infiniband >"$work/net"
switch=switch1
hca=host1
verbena fabric up "$work/net" --name net --sm none >/dev/null
cause_faults net "$hca" "$switch" "$hca"
shows "fault: node $hca is paused" && shows "delays packets by 1500us" || fail "fabric show: $(verbena fabric show)"
verbena fabric down >/dev/null
echo "C++ API: ok"

# ---- faults in the file of the fabric, and in a separate file
cat >>"$work/lab.toml" <<'TOML'

[[faults]]
fault = "link a net0 lossy 2"
seed = 7

[[faults]]
after = 0.2
fault = ["node", "b", "paused"]

[[faults]]
after = 0.4
fault = "node a pkey 0x8123 removed"
TOML
cat >"$work/more.toml" <<'TOML'
[[faults]]
after = 0.1
fault = "link b net0 down"
TOML
verbena fabric check "$work/lab.toml" --faults "$work/more.toml" >"$work/out"
[ "$(cat "$work/out")" = "$work/lab.toml: 2 hosts, 2 rails, 3 faults
$work/more.toml: 1 fault" ] || fail "fabric check: $(cat "$work/out")"
verbena fabric up "$work/lab.toml" --faults "$work/more.toml" >/dev/null
until_true 10 shows "fault: link a:verbena0 - net0 loses 2 % of its packets (seed 7)" || fail "$(cat "$work/show")"
until_true 10 shows "fault: link b:verbena0 - net0 is down" || fail "$(cat "$work/show")"
until_true 10 shows "fault: node b is paused" || fail "$(cat "$work/show")"
log_has() { verbena fabric log | grep -F "$1" >/dev/null; }
until_true 10 log_has "the fault 'node a pkey 33059 removed' of the file is refused: node a has no P_Key 0x8123" ||
  fail "the log: $(verbena fabric log)"
verbena fabric down >/dev/null
echo "files: ok"

# ---- faults of a subnet, which are in a separate file
printf '[[faults]]\nafter = 0.1\nfault = "link %s %s slow 5ms"\n' "$hca" "$switch" >"$work/slow.toml"
(cd "$work" && verbena fabric up net --name net --sm none --faults slow.toml >/dev/null)
until_true 10 shows "delays packets by 5ms" || fail "$(cat "$work/show")"
verbena fabric down >/dev/null
# expect_refusal COMMAND TEXT: checks that the command refuses the file of faults with this text.
expect_refusal() {
  if verbena fabric "$1" "$work/net" --faults "$work/wrong.toml" >"$work/out" 2>&1; then fail "$1 takes a wrong file"; fi
  grep -qF "$work/wrong.toml:$2" "$work/out" || fail "$1 says: $(cat "$work/out")"
}
printf '[[faults]]\nfault = "node nobody off"\n' >"$work/wrong.toml"
for command in up check; do expect_refusal $command "2:9: there is no node 'nobody'"; done
printf '[[faults]]\nfault = "node %s gone"\n' "$hca" >"$work/wrong.toml"
for command in up check; do expect_refusal $command "2:9: 'gone' is not a state of a node: use off, on, paused or pkey"; done
check_nothing_left
echo "a file of faults for a subnet: ok"
