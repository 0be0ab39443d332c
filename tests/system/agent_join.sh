#!/bin/bash
# ctest: TIMEOUT 120
# Kills the agent of many programs.  Then many threads of each program make calls at the same moment.  Each program must
# connect to the new agent once, and only one agent may start.  Also tests calls that cannot connect to an agent.
. "$(dirname "$0")/lib.sh"
need python3 ss
programs=5

pids=()
for i in $(seq $programs); do
  mkfifo "$work/in.$i"
  start run -- "$VB_PREFIX/tests/programs/crowd" <"$work/in.$i" >"$work/out.$i" 2>"$work/err.$i" &
  pids+=($!)
  eval "exec {to[$i]}>\"$work/in.$i\""
done
tell_all() { local i; for i in $(seq $programs); do tell "${to[$i]}"; done; }
all_made() { [ "$(cat "$work"/out.* | grep -c made)" -eq $((programs * $1)) ]; }
agents() { local p; for p in /proc/[0-9]*; do readlink "$p/exe" 2>/dev/null; done | grep -c verbenad || true; }
field() { verbena agent status --json | python3 -c "
import json, sys
print(json.load(sys.stdin)['agent']['$1'])"; }

tell_all
until_true 30 all_made 1 || fail "first: $(cat "$work"/err.* "$work"/out.*)"
[ "$(field leases)" -eq $programs ] || fail "not a lease for each program: $(field leases)"

agent=$(field pid)
kill -9 "$agent"
# Wait until all programs know that the agent has died.  Until then they can make QPs with numbers of the old agent.
no_sockets() { [ -z "$(ss -uanH 'sport = :4791')" ]; }
until_true 10 no_sockets || fail "a program holds the sockets of its dead agent: $(ss -uanp)"
tell_all
until_true 30 all_made 2 || fail "with the next agent: $(cat "$work"/err.* "$work"/out.*)"
# Several agents may start.  The first takes the agent's name, and the others find the name taken, and end.
one_agent() { [ "$(agents)" -eq 1 ]; }
until_true 10 one_agent || fail "$(agents) agents"
[ "$(field programs)" -eq $programs ] || fail "$(field programs) programs have joined"
[ "$(field leases)" -eq $programs ] || fail "not a lease for each program: $(field leases)"
[ "$(field pid)" != "$agent" ] || fail "the old agent still serves"
# The agent closes a connection that sends no Hello.
python3 - <<'PYTHON' || fail "the agent keeps a connection without Hello, or did not accept it"
import os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(20)
s.connect("\0verbena-%d" % os.geteuid())
assert s.recv(1) == b""
PYTHON

for i in $(seq $programs); do eval "exec ${to[$i]}>&-"; done
for pid in "${pids[@]}"; do wait "$pid" || fail "a program failed: $(cat "$work"/err.*)"; done

# If no descriptor is free for the data sockets, the call fails, and the device stays usable.
verbena run -- "$VB_PREFIX/tests/programs/few_descriptors" || fail "few_descriptors"
