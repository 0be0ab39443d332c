#!/bin/bash
# Kills the agent of many programs.  Then many threads of each program make calls at the same moment.  Each program must
# connect to the new agent once, and only one agent may remain.  Also tests a call that gets no descriptor for a socket.
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
# Lets each program make its next calls.
continue_all() { local i; for i in $(seq $programs); do send_newline "${to[$i]}"; done; }
# all_have_made COUNT: succeeds if each program has printed "made" COUNT times.
all_have_made() { [ "$(cat "$work"/out.* | grep -c made)" -eq $((programs * $1)) ]; }
count_agents() { local p; for p in /proc/[0-9]*; do readlink "$p/exe" 2>/dev/null; done | grep -c verbenad || true; }
agent_field() { verbena agent status --json | python3 -c "
import json, sys
print(json.load(sys.stdin)['agent']['$1'])"; }

continue_all
until_true 30 all_have_made 1 || fail "first: $(cat "$work"/err.* "$work"/out.*)"
[ "$(agent_field leases)" -eq $programs ] || fail "not a lease for each program: $(agent_field leases)"

agent=$(agent_field pid)
kill -9 "$agent"
# Wait until all programs have noticed the death of the agent.  Before that, they can still create QPs with QP numbers
# of the old agent.
no_sockets() { [ -z "$(ss -uanH 'sport = :4791')" ]; }
until_true 10 no_sockets || fail "a program holds the sockets of its dead agent: $(ss -uanp)"
continue_all
until_true 30 all_have_made 2 || fail "with the next agent: $(cat "$work"/err.* "$work"/out.*)"
# Several agents may start.  The first one gets the agent's name.  The others find the name in use, and end.
has_one_agent() { [ "$(count_agents)" -eq 1 ]; }
until_true 10 has_one_agent || fail "$(count_agents) agents"
[ "$(agent_field programs)" -eq $programs ] || fail "$(agent_field programs) programs have joined"
[ "$(agent_field leases)" -eq $programs ] || fail "not a lease for each program: $(agent_field leases)"
[ "$(agent_field pid)" != "$agent" ] || fail "the old agent still runs"
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
