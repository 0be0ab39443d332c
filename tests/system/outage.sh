#!/bin/bash
# The network fails for a moment while data flows.  Lost packets must be sent again, and data must flow again.
. "$(dirname "$0")/lib.sh"
need rping ip

export VERBENA_LINK=udp  # lanes, the default, would work even without the network
start run -- rping -s >"$work/server" 2>&1 &
server=$!
wait_listening 7174
start run -- rping -c -a 127.0.0.1 -C 100000000 -V >"$work/client" 2>&1 &
client=$!

packets_sent() { verbena ps --json | python3 -c '
import json, sys
for process in json.load(sys.stdin)["processes"]:
    for qp in process["qps"]:
        if process["pid"] == '$client' and qp["state"] == "RTS":
            print(qp["packets_out"])' | head -1; }
has_sent_more_than() { local now; now=$(packets_sent); [ -n "$now" ] && [ "$now" -gt "$1" ]; }
until_true 20 has_sent_more_than 100 || fail "no data flows: $(verbena ps)"

for round in 1 2 3; do
  ip link set lo down
  sleep 0.3  # the outage itself
  ip link set lo up
  before=$(packets_sent)
  until_true 10 has_sent_more_than $((before + 100)) ||
    fail "round $round: no data flows after the outage: $(verbena ps) $(cat "$work/client")"
done
verbena ps | grep -E '[[:space:]]RC[[:space:]]+RTS' || fail "no QP is connected after the outages"
kill $client $server
