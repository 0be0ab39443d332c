#!/bin/bash
# ctest: PLAIN
# `verbena fabric up` starts OpenSM on nodes of a subnet, and waits until the ports are active.  After the end of the
# fabric, no process or file may remain.  The test is PLAIN because verbena-fabric starts OpenSM without the sanitizer's
# runtime.
unset VERBENA_LINK
source "$VB_SOURCE/tests/system/lib.sh"
need opensm ibstat ibstatus sminfo python3 ss

cat >"$work/lab.net" <<'EOF'
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

Hca	1 "Hca4"
EOF
mkdir "$work/tmp"
export TMPDIR=$work/tmp

# output_has PATTERN COMMAND...: succeeds if the output of the command has the pattern.
output_has() {
  "${@:2}" >"$work/printed" 2>&1 || true
  grep -q -- "$1" "$work/printed"
}
on() { verbena run --node "$1" -- "${@:2}"; }
# manager_field NUMBER FIELD: prints a field of a manager from `fabric show`.
manager_field() { verbena fabric show --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["fabric"]["managers"][int(sys.argv[1])][sys.argv[2]])' "$@"; }
is_in_state() { [ "$(manager_field "$1" state)" = "$2" ]; }
log_has() { output_has "$1" verbena fabric log; }
directory_is_empty() { [ -z "$(ls -A "$work/tmp")" ]; }
# expect_refusal TEXT ARGUMENT...: checks that `fabric up` fails with this message.
expect_refusal() {
  if verbena fabric up "$work/lab.net" "${@:2}" >"$work/out" 2>&1; then fail "fabric up ${*:2} does not fail"; fi
  grep -q -- "$1" "$work/out" || fail "fabric up ${*:2} prints: $(cat "$work/out")"
}

# ---- one manager, by default
verbena fabric up "$work/lab.net" >"$work/up" || fail "the fabric does not come up: $(verbena fabric log)"
grep -q "fabric 'lab' is up: 4 HCAs, 1 switch, 3 links; managed by OpenSM on Hca1" "$work/up" ||
  fail "fabric up prints: $(cat "$work/up")"
on Hca3 ibstat >"$work/out"
grep -q 'State: Active' "$work/out" || fail "fabric up returns before the ports are active: $(cat "$work/out")"
output_has 'state 3 SMINFO_MASTER' on Hca2 sminfo || fail "sminfo finds no master"
is_in_state 0 master && [ "$(manager_field 0 node)" = Hca1 ] || fail "fabric show: $(verbena fabric show)"
output_has "^subnet manager on Hca1: master, OpenSM, pid $(manager_field 0 pid)$" verbena fabric show ||
  fail "fabric show: $(verbena fabric show)"
# OpenSM writes the last of these lines after its sweep, which may end after the ports have become active.
for wanted in 'OpenSM (pid [0-9]*) starts at Hca1:1' 'the subnet is up' 'SUBNET UP'; do
  until_true 20 log_has "$wanted" || fail "fabric log has no line '$wanted': $(cat "$work/printed")"
done
[ -d "$(manager_field 0 directory)" ] || fail "OpenSM has no directory of its own"
# `fabric up` must also wait for the ports of switches, so the next subnet has many switches.
verbena fabric make --fat-tree 16 >"$work/tree.net"
verbena fabric up "$work/tree.net" >"$work/up" || fail "a fat tree does not come up: $(cat "$work/up")"
verbena fabric down tree >/dev/null
# Programs that read /sys must find the ports there.
on_with_files() { verbena run --sysfs --node "$1" -- "${@:2}"; }
if output_has '^ok *run --sysfs' verbena doctor; then
  on_with_files Hca3 ibstatus >"$work/out" || fail "ibstatus: $(cat "$work/out")"
  lid=$(on Hca3 ibstat | sed -n 's/.*Base lid: //p')
  for wanted in "device 'verbena0' port 1" "base lid:.*$(printf '%#x' "$lid")$" 'sm lid:.*0x1$' 'state:.*4: ACTIVE' \
    'phys state:.*5: LinkUp' 'rate:.*[0-9] Gb/sec (4X [A-Z]*)' 'link_layer:.*InfiniBand' 'default gid:.*fe80:'; do
    grep -q "$wanted" "$work/out" || fail "ibstatus does not print '$wanted': $(cat "$work/out")"
  done
  on_with_files Hca4 ibstatus >"$work/out"
  grep -q 'state:.*1: DOWN' "$work/out" || fail "Hca4, which has no cable: $(cat "$work/out")"
  [ "$(on_with_files Hca1 cat /sys/class/infiniband/verbena0/ports/1/pkeys/0)" = 0xffff ] || fail "no P_Key"
fi
echo "one manager: ok"

# The fabric must report the end of a manager.
kill -KILL "$(manager_field 0 pid)"
until_true 30 is_in_state 0 'ended: signal 9' || fail "the end of OpenSM is not shown: $(verbena fabric show)"
until_true 20 log_has 'has ended: signal 9' || fail "the end of OpenSM is not in the log"
verbena fabric down >/dev/null
directory_is_empty || fail "down leaves $(find "$work/tmp")"
check_nothing_left

# ---- two managers
verbena fabric up "$work/lab.net" --sm Hca3 --sm Hca2 >"$work/up" || fail "two managers: $(cat "$work/up")"
one_is_standby() { [ "$(manager_field 0 state) $(manager_field 1 state)" = 'standby master' ] ||
  [ "$(manager_field 0 state) $(manager_field 1 state)" = 'master standby' ]; }
until_true 20 one_is_standby || fail "two managers: $(verbena fabric show)"
master=0
is_in_state 1 master && master=1
kill -KILL "$(manager_field $master pid)"
# A standby takes over only if the master has not answered its requests for 40 s.
if [ -n "${VB_THOROUGH:-}" ]; then
  until_true 90 is_in_state $((1 - master)) master || fail "the standby does not take over: $(verbena fabric show)"
fi
echo "two managers: ok"

# ---- kill -9 of the fabric leaves neither OpenSM nor its files
pid=$(verbena fabric show --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["fabric"]["pid"])')
opensm=$(manager_field $((1 - master)) pid)
kill -KILL "$pid"
until_true 30 gone "$opensm" || fail "OpenSM outlives its fabric"
until_true 30 directory_is_empty || fail "kill -9 leaves $(find "$work/tmp")"
check_nothing_left
echo "kill -9: ok"

# ---- impossible requests are refused
expect_refusal "there is no node 'Hca9'" --sm Hca9
expect_refusal 'Switch1: it is a switch' --sm Switch1
expect_refusal 'Hca4: the HCA has no cable' --sm Hca4
mkdir "$work/bin"
printf '#!/bin/sh\necho "no licence"\nexit 3\n' >"$work/bin/opensm"
chmod +x "$work/bin/opensm"
PATH=$work/bin:$PATH expect_refusal "the fabric 'lab' is up, but its subnet is not: OpenSM on 'Hca1' has ended: exit code 3"
until_true 20 log_has 'no licence' || fail "fabric log hides what OpenSM prints: $(verbena fabric log)"
verbena fabric down >/dev/null
verbena fabric up "$work/lab.net" --sm none >/dev/null
! output_has 'State: Active' on Hca1 ibstat || fail "a manager runs in spite of --sm none"
verbena fabric down >/dev/null
directory_is_empty || fail "files remain: $(find "$work/tmp")"
echo "messages: ok"
