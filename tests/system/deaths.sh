#!/bin/bash
# Tests connections to a missing listener, and peers that are killed.  Checks that no process, socket or file remains.
. "$(dirname "$0")/lib.sh"
need rping ss

# Without a listener, the client must get REJECTED with reason 8 (invalid service id) at once.  Without an answer, it
# would wait for at least 17 s.
verbena agent start >/dev/null
start_time=$(date +%s%N)
if verbena run -- timeout 20 rping -c -a 127.0.0.1 -C 1 >"$work/client" 2>&1; then
  fail "connected without a listener"
fi
elapsed_ms=$((($(date +%s%N) - start_time) / 1000000))
grep -q 'RDMA_CM_EVENT_REJECTED, error 8' "$work/client" || fail "not rejected with 8: $(cat "$work/client")"
[ $elapsed_ms -lt 10000 ] || fail "the rejection took $elapsed_ms ms"

# If the server is killed during a connection, the client must notice it within 5 s.
for round in 1 2 3; do
  start run -- rping -s >"$work/server" 2>&1 &
  server=$!
  wait_listening 7174
  start run -- rping -c -a 127.0.0.1 -C 100000000 >"$work/client" 2>&1 &
  client=$!
  two_qps_in_rts() { [ "$(verbena ps | grep -cE '[[:space:]]RC[[:space:]]+RTS[[:space:]]')" -eq 2 ]; }
  until_true 20 two_qps_in_rts || fail "not connected: $(verbena ps)"
  kill -9 $server
  wait $server 2>/dev/null || true
  start_time=$(date +%s%N)
  until_true 10 gone $client || fail "the client did not notice (round $round)"
  elapsed_ms=$((($(date +%s%N) - start_time) / 1000000))
  [ $elapsed_ms -lt 5000 ] || fail "the client noticed after $elapsed_ms ms (round $round)"
  grep -qE 'DISCONNECT EVENT|cq completion failed|Flush|flush' "$work/client" ||
    fail "round $round: the client ended for another reason: $(cat "$work/client")"
done

# If the client is killed, the server must notice it within 5 s.
start run -- rping -s >"$work/server" 2>&1 &
server=$!
wait_listening 7174
start run -- rping -c -a 127.0.0.1 -C 100000000 >"$work/client" 2>&1 &
client=$!
until_true 20 two_qps_in_rts || fail "not connected: $(verbena ps)"
kill -9 $client
wait $client 2>/dev/null || true
until_true 5 gone $server || fail "the server did not notice within 5 s"

# The agent ends when it is idle.  Then no process, socket, memory or file may remain.
until_true 45 no_agent || fail "the agent is still there: $(verbena agent status)"
check_nothing_left

# The next programs must work, with a new agent.
start run -- rping -s -C 5 >"$work/server" 2>&1 &
server=$!
wait_listening 7174
verbena run -- timeout 20 rping -c -a 127.0.0.1 -C 5 >"$work/client" 2>&1 || fail "the next run failed"
wait $server || fail "the next server failed"
