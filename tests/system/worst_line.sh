#!/bin/bash
# A line loses 15 % of the packets and corrupts 15 %, in each direction and in bursts.  Two hosts make fifty connections
# over it, and all fifty must become ESTABLISHED at both ends.  On a line that is twice as bad, one of 500 connections
# fails, because all RTUs may be lost: the agent answers a REQ with at most 16 REPs (Max CM Retries), so that a forged
# REQ does little harm.
#   VB_LINE_SEEDS    number of seeds (default 1); VB_SEED=N runs one seed again
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need ucmatose stdbuf

faults="loss=15 corrupt=15 burst=3"
connections=50
address=$(address_of b 6)  # with IPv4, the checks would accept one of 65,536 corrupt packets

run_failed() {
  local host
  for host in a b; do
    echo "host $host:"
    on $host verbena ps | sed -n 's/.* id  *\([a-z-]*\) .*/\1/p' | sort | uniq -c
    on $host verbena ps --counters | grep ' cm_' || true
  done
  fail "seed $seed, '$faults': $*; client: $(tail -3 "$work/client"); server: $(tail -3 "$work/server");" \
    "replay with VB_SEED=$seed; $(line_counts)"
} >&2
listens() { gone $server || on b verbena ps | grep -q 'listening.*:7471\b'; }
# ucmatose tries once for each id.  It sends no data here, because data would replace a lost RTU.  Its server begins to
# disconnect when all connections are ESTABLISHED.
all_established() { grep -q 'disconnecting' "$work/server"; }
established_or_failed() { all_established || grep -q 'event:' "$work"/{client,server} || gone $client || gone $server; }
ends_well() {  # ends_well PID NAME
  wait "$1" || run_failed "the $2: exit $?"
  grep -q 'return status 0' "$work/$2" && ! grep -q 'event:\|fail' "$work/$2" || run_failed "the $2 reports an error"
}
line_is_bad() {  # succeeds if the line has lost or corrupted a fifth of all packets in each direction
  line_counts | tr ';' '\n' | sed 's/[a-z]*=//g' | awk '($4 + $7) * 5 > $2 { ++bad } END { exit bad != 2 }'
}

make_hosts 1500
first=${VB_SEED:-1}
last=${VB_SEED:-${VB_LINE_SEEDS:-1}}
for ((seed = first; seed <= last; ++seed)); do
  : >"$work/client"
  start_on b verbena run -- timeout 100 stdbuf -oL ucmatose -c $connections -C 0 -b "$address" >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens && ! gone $server || run_failed "the server does not listen"
  line "seed $seed"
  line "both $faults"
  start_time=$(date +%s%N)
  start_on a verbena run -- timeout 100 stdbuf -oL ucmatose -c $connections -C 0 -s "$address" >"$work/client" 2>&1 &
  client=$!
  until_true 70 established_or_failed && all_established || run_failed "not all of $connections are established"
  elapsed_ms=$((($(date +%s%N) - start_time) / 1000000))
  line_is_bad || run_failed "the line has lost or corrupted too few packets"
  line both  # this test does not cover disconnects over a bad line
  ends_well $client client
  ends_well $server server
  echo "seed $seed: $connections of $connections made in $elapsed_ms ms; $(line_counts)"
done
