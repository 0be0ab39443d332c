#!/bin/bash
# Kills the agent again and again, at random moments.  Both programs must notice it within 5 s.  Their next call must
# find or start a new agent, and they must connect again.  At the end no process, socket or file may remain.
. "$(dirname "$0")/lib.sh"
need ss
rounds=${VB_ROUNDS:-6}
survivor=$VB_PREFIX/tests/programs/survivor

start run -- "$survivor" server 7471 >"$work/server" 2>"$work/server.err" &
server=$!
wait_listening 7471
start run -- "$survivor" client 127.0.0.1 7471 >"$work/client" 2>"$work/client.err" &
client=$!

alive() { kill -0 $server 2>/dev/null && kill -0 $client 2>/dev/null; }
has_printed() { grep -q "^$1 $2\b" "$work/server" && grep -q "^$1 $2\b" "$work/client"; }
has_printed_or_ended() { has_printed "$@" || ! alive; }
# wait_printed WORD ROUND SECONDS: waits until both programs have printed "WORD ROUND".  Their numbers of rounds agree,
# because both programs use each agent that is killed.
wait_printed() {
  until_true "$3" has_printed_or_ended "$1" "$2" || fail "round $2: not both programs are $1: $(tail -n 3 "$work"/server* "$work"/client*; verbena ps)"
  alive || fail "round $2: a program ended: $(tail -n 3 "$work"/server* "$work"/client*)"
}
agent_pid() { verbena agent status 2>/dev/null | sed -n 's/.*\bpid \([0-9]*\),.*/\1/p' | head -1; }
both_have_an_agent() { [ "$(verbena agent status --json | python3 -c '
import json, sys
print(json.load(sys.stdin)["agent"]["programs"])' 2>/dev/null)" = 2 ]; }

for round in $(seq "$rounds"); do
  # Every second kill comes soon after both programs have joined the new agent, perhaps before they are connected.
  if [ $((round % 2)) = 1 ]; then
    wait_printed connected "$round" 20
  else
    until_true 20 both_have_an_agent || fail "round $round: not both programs have an agent: $(verbena agent status)"
  fi
  sleep 0.$((RANDOM % 300 + 100))  # the kill comes at a random moment
  agent=$(agent_pid)
  [ -n "$agent" ] || fail "round $round: no agent"
  kill -9 "$agent"
  until_true 30 gone "$agent" || fail "round $round: the agent does not die"
  # The 5 s begin when the agent has ended, because its death takes long on a loaded machine.
  start_time=$(date +%s%3N)
  wait_printed heard "$round" 10
  for program in server client; do
    elapsed_ms=$(($(sed -n "s/^heard $round //p" "$work/$program") - start_time))
    [ $elapsed_ms -lt 5000 ] || fail "round $round: the $program noticed it after $elapsed_ms ms"
  done
done
wait_printed connected $((rounds + 1)) 20
two_qps_in_rts() { [ "$(verbena ps | grep -cE '[[:space:]]RC[[:space:]]+RTS[[:space:]]')" -eq 2 ]; }
until_true 20 two_qps_in_rts || fail "not two QPs: $(verbena ps)"

kill $server $client
for pid in $server $client; do
  wait $pid || fail "a program failed when it was asked to end: $(cat "$work"/*.err)"
done
# The agent repeats its unanswered DREQs until they time out.  Then it ends after 10 s without programs.
until_true 45 no_agent || fail "the agent is still there: $(verbena agent status)"
check_nothing_left
