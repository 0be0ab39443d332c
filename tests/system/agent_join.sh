#!/bin/bash
# ctest: TIMEOUT 120
# Many threads of many programs, whose agent has died, call at the same moment: each program joins once,
# and one agent is started.  And what may go wrong on the way to an agent.
. "$(dirname "$0")/lib.sh"
need python3
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
until_true 5 gone "$agent" || fail "the agent does not die"
tell_all
until_true 30 all_made 2 || fail "with the next agent: $(cat "$work"/err.* "$work"/out.*)"
[ "$(agents)" -eq 1 ] || fail "$(agents) agents"
[ "$(field programs)" -eq $programs ] || fail "$(field programs) programs have joined"
[ "$(field leases)" -eq $programs ] || fail "not a lease for each program: $(field leases)"
[ "$(field pid)" != "$agent" ] || fail "the same agent"
for i in $(seq $programs); do eval "exec ${to[$i]}>&-"; done
for pid in "${pids[@]}"; do wait "$pid" || fail "a program failed: $(cat "$work"/err.*)"; done

# No descriptor is free for the data sockets: that call fails, and the device stays.
verbena run -- "$VB_PREFIX/tests/programs/few_descriptors" || fail "few_descriptors"

# Somebody connects and says nothing: it does not keep a place.
python3 - <<'PYTHON' || fail "a connection without Hello is kept"
import os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.settimeout(20)
s.connect("\0verbena-%d" % os.geteuid())
assert s.recv(1) == b""
PYTHON
