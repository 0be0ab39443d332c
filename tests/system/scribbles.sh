#!/bin/bash
# A client that writes random values into the memory that it shares with a server may harm only its own connection.  The
# lane must be ended and counted, and the server must continue to serve other clients.  VB_SCRIBBLES sets the number of
# words (default 200,000), and VB_SEED determines their values.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset VERBENA_LINK
export VERBENA_IDLE=2
programs=$VB_PREFIX/tests/programs
total=${VB_SCRIBBLES:-200000}
words_per_client=10000
seed=${VB_SEED:-$((RANDOM * 32768 + RANDOM))}
echo "VB_SEED=$seed, $total words, $words_per_client by each client"

verbena run -- true
start run -- "$programs/echo" 7601 >"$work/server" 2>&1 &
server=$!
wait_listening 7601
for ((i = 0; i * words_per_client < total; ++i)); do
  verbena run -- timeout 60 "$programs/scribble" 7601 $words_per_client $((seed + i)) >"$work/client" 2>&1 ||
    fail "VB_SEED=$seed, client $i: exit $?: $(cat "$work/client")"
  grep -q "^scribbled $words_per_client\$" "$work/client" || fail "VB_SEED=$seed, client $i: $(cat "$work/client")"
  gone $server && fail "VB_SEED=$seed, client $i has ended the server: $(cat "$work/server")"
done
clients=$i

# No lane may remain.  Each lane was ended by the server, by the agent, or by the end of its client.
counters() { verbena ps --counters --json; }
# value PROCESS NAME: prints a counter of a program (by its pid) or of the agent.
value() { counters | python3 -c '
import json, sys
found = json.load(sys.stdin)
counters = found["agent"]["counters"] if sys.argv[1] == "agent" else next(
    p["counters"] for p in found["processes"] if p["pid"] == int(sys.argv[1]))
print(counters.get(sys.argv[2], 0))' "$1" "$2"; }
no_lanes() { [ "$(value $server lanes)" -eq 0 ]; }
until_true 20 no_lanes || fail "lanes of dead clients are left: $(counters)"
# Many lanes must have been ended because of wrong values, and not by the end of the client.
broken=$(value agent lanes_broken)
[ "$broken" -ge $((clients / 10)) ] || fail "only $broken lanes of $clients clients were ended: $(counters)"

# The server must still serve other clients.
verbena run -- timeout 60 "$programs/echo" 7601 500 >"$work/client" 2>&1 || fail "a later client: $(cat "$work/client")"
[ "$(value $server lane_packets_in)" -gt 0 ] || fail "no packets by lanes: $(counters)"
echo "$clients clients, $broken lanes ended"
kill $server
wait $server 2>/dev/null || true
until_true 15 no_agent || fail "the agent is still there: $(verbena agent status)"
check_nothing_left
