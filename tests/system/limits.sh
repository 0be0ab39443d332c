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
