#!/bin/bash
# Programs must work under resource limits such as `ulimit -f`.  An agent that one of them starts raises its own limits,
# so it must be able to serve all programs.
. "$(dirname "$0")/lib.sh"
need rping python3

# The limit of file sizes is hard, so it cannot be raised.  It is smaller than the table of `verbena ps` and the ring of
# a capture.
(
  ulimit -f 100
  ulimit -Sn 64
  ulimit -St 300
  start run --verbose -- rping -s -C 50 -S 64 -V
) >"$work/server" 2>"$work/server.err" &
server=$!
wait_listening 7174
agent=$(agent_pid)
(
  ulimit -f 100
  verbena run -- timeout 60 rping -c -a 127.0.0.1 -v -V -C 50 -S 64
) >"$work/client" 2>"$work/client.err" || fail "client: $(cat "$work/client.err")"
wait $server || fail "server: $(tail -3 "$work/server.err")"
[ "$(grep -ac 'ping data' "$work/client")" -eq 50 ] || fail "not 50 rounds"
grep -q "'verbena ps' will not show" "$work/server.err" || fail "no message is printed: $(cat "$work/server.err")"

[ "$(agent_pid)" = "$agent" ] || fail "the agent has died"
# limit NAME: prints the soft and the hard limit of the agent.
limit() { sed -n "s/^Max $1  *\([^ ]*\)  *\([^ ]*\).*/\1 \2/p" "/proc/$agent/limits"; }
check_agent_limits() {
  local name soft hard
  for name in "open files" "cpu time" "file size" "address space"; do
    read -r soft hard < <(limit "$name")
    [ "$soft" = "$hard" ] || fail "the agent's limit of $name is $soft of $hard"
  done
  [ "$(limit 'core file size' | cut -d' ' -f1)" = 0 ] || fail "the agent may leave a core file"
}
check_agent_limits
verbena agent stop >/dev/null
until_true 20 no_verbena_process || fail "the agent is still there"

# The next limits are soft, so the agent may raise them.
(
  ulimit -Sn 64
  ulimit -St 300
  ulimit -Sf 100000
  ulimit -Sc "$(ulimit -Hc)"
  [ -n "${VB_PRELOAD:-}" ] || ulimit -Sv 8000000  # a sanitizer needs more address space
  start run -- rping -s
) >"$work/server" 2>&1 &
server=$!
wait_listening 7174
agent=$(agent_pid)
check_agent_limits
kill $server
wait $server || true
verbena agent stop >/dev/null
until_true 20 no_verbena_process || fail "the agent is still there"

# An agent that could serve no second program must not start, and must name the limit.
if (ulimit -n 24 && verbena run -- rping -s) >"$work/out" 2>&1; then fail "a program runs with 24 open files"; fi
grep -q "the limit of open files (RLIMIT_NOFILE) is 24" "$work/out" || fail "the limit is not named: $(cat "$work/out")"
until_true 20 no_verbena_process || fail "an agent with 24 open files runs"

# An agent that can serve few programs must refuse the others by a message that names the limit.
(ulimit -n 64 && start run -- rping -s -p 7200) >"$work/first" 2>&1 &
programs=($!)
wait_listening 7200
verbena doctor >"$work/doctor" || true
grep -E "^note +agent's open files: RLIMIT_NOFILE of the agent \(pid $(agent_pid)\) is 64" "$work/doctor" ||
  fail "doctor does not name the agent's limit: $(cat "$work/doctor")"
for i in $(seq 1 20); do
  start run -- rping -s -p $((7200 + i)) >"$work/next" 2>&1 &
  next=$!
  listens_or_ended() { has_listener $((7200 + i)) || ! kill -0 $next 2>/dev/null; }
  until_true 20 listens_or_ended || fail "program $i waits: $(cat "$work/next")"
  if ! kill -0 $next 2>/dev/null; then break; fi
  programs+=($next)
done
[ $i -gt 1 ] || fail "the agent serves only one program: $(cat "$work/next")"
[ $i -lt 20 ] || fail "the agent refuses nobody"
grep -q "may open only 64 files (RLIMIT_NOFILE)" "$work/next" || fail "program $i is refused without the limit: $(cat "$work/next")"
kill "${programs[@]}"
