#!/bin/bash
# Makes many connections between two hosts at once, more than the backlog of the listener allows.  Kills the server in
# the middle, and starts it again.  Each attempt must get a result, each connection must be made and ended, and the
# agents must not use much more memory than before.
#   VB_STORM    number of connections (default 3000), a tenth of them at once
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need python3
total=${VB_STORM:-3000}
at_once=$((total / 10))
storm=$VB_PREFIX/tests/programs/storm
limit=$((100 + total / 50))
port=7602 backlog=16  # up to 128 requests may be under way, which exceeds the backlog
export VERBENA_IDLE=600  # the agents must not end between the runs, because their memory is compared

listens() { on b verbena ps | grep -q "listening.*:$port\b"; }
serve() {
  start_on b verbena run -- "$storm" server $port $backlog >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens || fail "no server: $(cat "$work/server")"
}
agent_kib() {  # agent_kib HOST: prints the resident memory of the host's agent
  local pid
  pid=$(on "$1" verbena agent status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["agent"]["pid"])')
  sed -n 's/^VmRSS:[^0-9]*\([0-9]*\) kB/\1/p' "/proc/$pid/status"
}
# run_client RUN [TOTAL AT_ONCE [FIFO]]: runs the client, with its output in $work/RUN.  With FIFO, the client stops
# after half of its connections, until it reads a line from the FIFO.
run_client() {
  on a verbena run -- timeout $limit "$storm" client "$(address_of b 4)" $port ${2:-$total} ${3:-$at_once} ${4:-} \
    >"$work/$1" 2>&1
}
# is_small HOST: succeeds if the agent has at most a quarter and 1 MiB more memory than before.
is_small() { [ "$(agent_kib "$1")" -le $((before[$1] + before[$1] / 4 + 1024)) ]; }
# has_few_ids HOST COUNT: succeeds if the programs of the host have at most COUNT ids.
has_few_ids() { [ "$(on "$1" verbena ps | grep -c ' id ')" -le "$2" ]; }

make_hosts 1500
serve
run_client some 10 1 || fail "ten: exit $?: $(tail -5 "$work/some")"
declare -A before
for host in a b; do before[$host]=$(agent_kib $host); done
run_client first || fail "the first: exit $?: $(tail -5 "$work/first")"
until_true 60 has_few_ids a 0 && until_true 60 has_few_ids b 1 || fail "ids are left: $(on b verbena ps | tail -3)"
echo "without a kill: $(tail -1 "$work/first")"
grep -q ' refused 0 ' "$work/first" || fail "some attempts were refused: $(grep reason "$work/first" | sort | uniq -c)"

mkfifo "$work/go"
exec {go}<>"$work/go"  # an open for reading and writing does not wait for the client
run_client second $total $at_once "$work/go" &
client=$!
until_true $limit grep -qs "^$((total / 2)) made" "$work/second" || fail "half: $(cat "$work/second" "$work/server")"
kill -KILL $server
wait $server 2>/dev/null || true  # bash says "Killed"
echo >&"$go"
serve
wait $client || fail "exit $?: $(grep -v 'made$' "$work/second" | sort | uniq -c | tail -5); server: $(tail -3 "$work/server")"
echo "with its server killed: $(tail -1 "$work/second")"
grep -q serving "$work/server" || fail "the second server has served no connection"
# Each connection that was made has ended, and each attempt has got its result.
python3 - "$total" $(tail -1 "$work/second") <<'PY' || fail "the numbers of results do not add up"
import sys
total, words = int(sys.argv[1]), sys.argv[2:]
result = {words[i]: int(words[i + 1]) for i in range(0, len(words), 2)}
good = (result["made"] >= total and result["ended"] == result["made"] and result["alive"] == 0
        and result["attempts"] == result["made"] + result["refused"] + result["unanswered"])
sys.exit(0 if good else 1)
PY
until_true 60 has_few_ids a 0 && until_true 60 has_few_ids b 1 || fail "ids are left: $(on b verbena ps | tail -3)"
[ "$(on b verbena ps --counters | awk '$3 == "limit_backlog" { n += $4 } END { print n + 0 }')" -gt 0 ] ||
  fail "the backlog never overflowed"
# A sanitizer keeps freed memory for a while.
[ -n "${VB_PRELOAD:-}" ] || for host in a b; do
  until_true 20 is_small $host || fail "the agent of $host has grown from ${before[$host]} to $(agent_kib $host) KiB"
  echo "agent of $host: ${before[$host]} KiB before, $(agent_kib $host) KiB after"
done
kill $server
wait $server 2>/dev/null || true
