#!/bin/bash
# `verbena doctor` must report what keeps programs from running, and what to do.  It must report nothing else as a
# problem.
. "$(dirname "$0")/lib.sh"
need ip ss python3 rping

# run_doctor EXIT-CODE [WRAPPER...]: runs `verbena doctor`, or the wrapper with this command.  Checks the exit code and
# the form of the output, and stores the output in $work/doctor.
run_doctor() {
  local code=$1 got=0
  shift
  "$@" verbena doctor >"$work/doctor" 2>"$work/doctor.err" || got=$?
  [ $got -eq "$code" ] || fail "doctor exits with $got, not $code: $(cat "$work/doctor" "$work/doctor.err")"
  if grep -vE '^(ok|note|problem) +[^:]+: .|^ +-> .' "$work/doctor"; then fail "the line above has another form"; fi
  # The line below each note and problem must say what to do.
  awk '/^(note|problem)/ { getline below; if (below !~ /^ +-> /) exit 1 }' "$work/doctor" ||
    fail "a finding without a fix: $(cat "$work/doctor")"
}
# expect_line PATTERN: fails the test unless a line of the output of run_doctor matches.
expect_line() { grep -qE "$1" "$work/doctor" || fail "no '$1' in: $(cat "$work/doctor")"; }

# On a healthy host, doctor must find no problem, and must start no agent.
run_doctor 0
expect_line '^ok +libraries: in .*, build '
expect_line '^note +UDP port 4791: free'
expect_line '^ok +interface lo: MTU [0-9]+ \(RDMA 4096\), 127\.0\.0\.1'
expect_line '^ok +agent: none is running'
no_agent || fail "doctor has started an agent"
verbena doctor --json | python3 -c '
import json, sys
findings = json.load(sys.stdin)["findings"]
assert all(f["level"] in ("ok", "note") for f in findings), findings
assert all(f["fix"] for f in findings if f["level"] != "ok"), findings'

# Doctor must report the agent and the program that are running.
start run -- rping -s >"$work/server" 2>&1 &
server=$!
wait_listening 7174
run_doctor 0
expect_line '^ok +agent: pid [0-9]+, build .*, 1 program$'
expect_line '^note +UDP port 4791: the agent has it on all addresses'
expect_line '127\.0\.0\.1 \(GID [0-9]+\)'
kill $server
wait $server 2>/dev/null || true
verbena agent stop >/dev/null
no_udp_sockets() { [ -z "$(ss -uanH 'sport = :4791')" ]; }
until_true 20 no_udp_sockets || fail "sockets of port 4791 are left: $(ss -uanp)"

# Another program holds the port.
hold_port() { exec python3 -c '
import socket, sys
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.bind((sys.argv[1], 4791))
print("held", flush=True)
sys.stdin.read()' "$1" <"$work/hold" >"$work/held"; }
mkfifo "$work/hold"
hold_port 127.0.0.1 &
holder=$!
exec 9>"$work/hold"
until_true 20 grep -qs held "$work/held" || fail "the test cannot bind the port"
run_doctor 1
expect_line "^problem +UDP port 4791: pid $holder \(python3\) of root holds it on 127\.0\.0\.1"
exec 9>&-
wait $holder
run_doctor 0

# A low limit of descriptors is a problem if no program can run, and a note if only few can.
with_open_files() { (ulimit -n "$1"; shift; "$@"); }
run_doctor 1 with_open_files 24
expect_line '^problem +open files: RLIMIT_NOFILE is 24 '
run_doctor 0 with_open_files 256
expect_line '^note +open files: .*the agent can serve about [0-9]+ programs'

# The host does not have the address in VERBENA_BIND.
export VERBENA_BIND=10.99.0.1
run_doctor 1
expect_line '^problem +UDP port 4791: VERBENA_BIND=10\.99\.0\.1 is no address of this host'
ip addr add 10.99.0.1/32 dev lo
run_doctor 0
expect_line '^ok +UDP port 4791: free; an agent will open it on 10\.99\.0\.1 only'
unset VERBENA_BIND

# First no interface is up.  Then the interface is up, but has no address.
ip link set lo down
run_doctor 1
expect_line '^note +interface lo: down'
expect_line '^problem +addresses: no interface is up'
ip link set lo up
ip addr flush dev lo
run_doctor 1
expect_line '^note +interface lo: no address'

no_agent || fail "doctor has started an agent"
