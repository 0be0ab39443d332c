#!/bin/bash
# ctest: PLAIN
# Runs both ends of rping and their agent under memcheck, which must report no invalid access, no use of uninitialized
# memory, and no leak.  The test is PLAIN (not in preset asan), because Valgrind cannot run programs with
# AddressSanitizer.
. "$(dirname "$0")/lib.sh"
need valgrind rping

memcheck=(valgrind --quiet --error-exitcode=77 --num-callers=30 --track-origins=yes --leak-check=full
  --errors-for-leak-kinds=definite --show-leak-kinds=definite)
# Prints memcheck's reports.  Omits lines with "--", in which Valgrind 3.19 names system calls that it does not support.
reports() { grep -hE '^==[0-9]+==' "$@" || true; }
# Succeeds if all frames of all reports are in rping.  This is a known fault of rping: when rping ends, its event thread
# may read memory that its main thread has freed.
is_fault_of_rping() {
  grep -q 'Invalid read' "$1" &&
    [ -z "$(reports "$1" | grep -E ' (at|by) 0x' |
      grep -vE '\(in /usr/bin/rping\)|: (start_thread|clone) \(|\(below main\)|\(in [^)]*/valgrind/')" ]
}

"${memcheck[@]}" "$VB_PREFIX/lib/verbena/verbenad" --idle 600 >"$work/agent" 2>&1 &
agent=$!
agent_runs() { ! no_agent; }
until_true 60 agent_runs || fail "no agent: $(cat "$work/agent")"
[ "$(agent_pid)" -eq $agent ] || fail "another agent than the one under valgrind"

# Both sizes also test small messages, because rping sends the addresses of its buffers in such messages.
for bytes in ${VB_THOROUGH:+64} 20000; do
  start run -- "${memcheck[@]}" rping -s -C 20 -S $bytes -V >"$work/server" 2>&1 &
  server=$!
  until_true 60 has_listener 7174 || fail "no server: $(cat "$work/server")"
  verbena run -- timeout 100 "${memcheck[@]}" rping -c -a 127.0.0.1 -C 20 -S $bytes -V >"$work/client" 2>&1 ||
    is_fault_of_rping "$work/client" || fail "client, $bytes bytes: exit $?: $(reports "$work/client") $(tail -3 "$work/client")"
  wait $server || is_fault_of_rping "$work/server" || fail "server, $bytes bytes: exit $?: $(reports "$work/server") $(tail -3 "$work/server")"
done
verbena agent stop >/dev/null
wait $agent || fail "the agent: exit $?: $(cat "$work/agent")"
