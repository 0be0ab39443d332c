#!/bin/bash
# ctest: TIMEOUT 60
# `verbena doctor` reports what keeps programs from running, and what to do.  It reports nothing else as a problem.
. "$(dirname "$0")/lib.sh"
need ip python3 rping

# findings EXIT-CODE [WRAPPER...]: runs `verbena doctor`, by the wrapper if there is one.  Checks the exit code and the
# form of the output, which is then in $work/doctor.
findings() {
  local code=$1 got=0
  shift
  "$@" verbena doctor >"$work/doctor" 2>"$work/doctor.err" || got=$?
  [ $got -eq "$code" ] || fail "doctor exits with $got, not $code: $(cat "$work/doctor" "$work/doctor.err")"
  if grep -vE '^(ok|note|problem) +[^:]+: .|^ +-> .' "$work/doctor"; then fail "the line above has another form"; fi
  # The line below each note and problem must say what to do.
  awk '/^(note|problem)/ { getline below; if (below !~ /^ +-> /) exit 1 }' "$work/doctor" ||
    fail "a finding without a fix: $(cat "$work/doctor")"
}
says() { grep -qE "$1" "$work/doctor" || fail "no '$1' in: $(cat "$work/doctor")"; }

# On a healthy host, doctor finds no problem and starts nothing.
findings 0
says '^ok +libraries: in .*, build '
says '^note +UDP port 4791: free'
says '^ok +interface lo: MTU [0-9]+ \(RDMA 4096\), 127\.0\.0\.1'
says '^ok +agent: none is running'
no_agent || fail "doctor has started an agent"
verbena doctor --json | python3 -c '
import json, sys
findings = json.load(sys.stdin)["findings"]
assert all(f["level"] in ("ok", "note") for f in findings), findings
assert all(f["fix"] for f in findings if f["level"] != "ok"), findings'

# Doctor reports the agent and the program that run now.
start run -- rping -s >"$work/server" 2>&1 &
server=$!
wait_listening 7174
findings 0
says '^ok +agent: pid [0-9]+, build .*, 1 program$'
says '^note +UDP port 4791: the agent has it on all addresses'
says '127\.0\.0\.1 \(GID [0-9]+\)'
kill $server
verbena agent stop >/dev/null

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
until_true 20 grep -qs held "$work/held" || fail "the port cannot be held"
findings 1
says "^problem +UDP port 4791: pid $holder \(python3\) of root holds it on 127\.0\.0\.1"
exec 9>&-
wait $holder
findings 0

# A low limit of descriptors is a problem if no program can run, and a note if only few can.
with_open_files() { (ulimit -n "$1"; shift; "$@"); }
findings 1 with_open_files 24
says '^problem +open files: RLIMIT_NOFILE is 24 '
findings 0 with_open_files 256
says '^note +open files: .*the agent can serve about [0-9]+ programs'

# The address to bind to does not exist.
export VERBENA_BIND=10.99.0.1
findings 1
says '^problem +UDP port 4791: VERBENA_BIND=10\.99\.0\.1 is no address of this host'
ip addr add 10.99.0.1/32 dev lo
findings 0
says '^ok +UDP port 4791: free; an agent will open it on 10\.99\.0\.1 only'
unset VERBENA_BIND

# First no interface is up, and then none has an address.
ip link set lo down
findings 1
says '^note +interface lo: down'
says '^problem +addresses: no interface is up'
ip link set lo up
ip addr flush dev lo
findings 1
says '^note +interface lo: no address'

no_agent || fail "doctor has started an agent"
