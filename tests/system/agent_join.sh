#!/bin/bash
# ctest: TIMEOUT 120
# Many threads of many programs, whose agent has died, call at the same moment.  Each program joins once, and one agent
# is started.  Also tests failures on the way to an agent.
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
# Until a program knows that its agent has died, it may make QPs with the numbers that it has leased.
no_sockets() { [ -z "$(ss -uanH 'sport = :4791')" ]; }
until_true 10 no_sockets || fail "a program holds the sockets of its dead agent: $(ss -uanp)"
tell_all
until_true 30 all_made 2 || fail "with the next agent: $(cat "$work"/err.* "$work"/out.*)"
# Agents that started too late find that another one serves, and end.
one_agent() { [ "$(agents)" -eq 1 ]; }
until_true 10 one_agent || fail "$(agents) agents"
[ "$(field programs)" -eq $programs ] || fail "$(field programs) programs have joined"
[ "$(field leases)" -eq $programs ] || fail "not a lease for each program: $(field leases)"
[ "$(field pid)" != "$agent" ] || fail "the old agent still serves"
# A connection that sends nothing does not keep its place.
python3 - <<'PYTHON' || fail "a connection without Hello is kept, or was not taken"
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
