#!/bin/bash
# A line loses all packets for 5 s, then works for 2 s, and so on.  A connection must be made over this line, and data
# must flow again after each outage.  VB_PERIODS sets the number of outages (default 1).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need rping ucmatose python3
periods=${VB_PERIODS:-1}

listens() { on b verbena ps | grep -q "listening.*:$1\b"; }
# cut_frames: prints the number of frames that the line has lost in its outages.
cut_frames() { line_counts | sed 's/.*cut=\([0-9]*\).*cut=\([0-9]*\).*/\1 \2/' | awk '{ print $1 + $2 }'; }
has_cut_more_than() { [ "$(cut_frames)" -gt "$1" ]; }
# Prints the number of bytes that the client's queue pair has received, or "none" if it is not connected.
bytes_received() {
  on a verbena ps --json | python3 -c '
import json, sys
qps = [qp for process in json.load(sys.stdin)["processes"] for qp in process["qps"]
       if process["pid"] == int(sys.argv[1]) and qp["state"] == "RTS"]
print(qps[0]["bytes_in"] if qps else "none")' "$client"
}
has_received_more_than() {
  local now
  now=$(bytes_received)
  [ "$now" != none ] || fail "the connection has ended: $(cat "$work/client" "$work/server")"
  [ "$now" -gt "$1" ]
}
# check_flow: succeeds if the client receives more than 100,000 further bytes within 30 s.
check_flow() { until_true 30 has_received_more_than $(($(bytes_received) + 100000)); }

make_hosts 1500
start_on b verbena run -- rping -s -a 10.77.0.2 -C 100000000 -S 3000 -V >"$work/server" 2>&1 &
server=$!
until_true 20 listens 7174 || fail "nothing listens: $(cat "$work/server")"
line "both cut=5000/2000"
start_time=$SECONDS
start_on a verbena run -- rping -c -a 10.77.0.2 -C 100000000 -S 3000 -V >"$work/client" 2>&1 &
client=$!
connected() { gone $client || [ "$(bytes_received)" != none ]; }
until_true 60 connected || fail "no connection is made: $(cat "$work/client"); $(line_counts)"
echo "connected after $((SECONDS - start_time)) s"
for ((period = 1; period <= periods; ++period)); do
  check_flow || fail "period $period: no data flows: $(cat "$work/client"); $(line_counts)"
  until_true 20 has_cut_more_than "$(cut_frames)" || fail "period $period: the line is not cut: $(line_counts)"
  check_flow || fail "period $period: no data flows after the outage: $(cat "$work/client"); $(line_counts)"
done
echo "$periods periods: $(bytes_received) bytes verified; $(line_counts)"
kill $client $server
