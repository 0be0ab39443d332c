#!/bin/bash
# The agent must not keep the pipe or terminal of the program that starts it, and must not become visible as its child.
# Fifty programs that start at the same time must start one agent.
. "$(dirname "$0")/lib.sh"
need ibv_devices unshare
programs=$VB_PREFIX/tests/programs

count_agents() {
  local process count=0
  for process in /proc/[0-9]*; do
    case $(readlink "$process/exe" 2>/dev/null) in *verbenad) count=$((count + 1)) ;; esac
  done
  echo $count
}
stop_agent() {
  verbena agent stop >/dev/null || fail "the agent does not stop"
  until_true 30 no_agent || fail "the agent is still there"
}

# A command substitution ends when no process has its pipe open.  The agent runs for ten minutes, so it must not have
# the pipe open.  Descriptor 3 of readlink is the pipe, because its standard output is the file.
export VERBENA_IDLE=600
start_time=$SECONDS
out=$(readlink /proc/self/fd/3 3>&1 >"$work/pipe" && verbena run -- ibv_devices)
[ $((SECONDS - start_time)) -lt 30 ] || fail "the pipe was open for $((SECONDS - start_time)) s"
grep -q verbena0 <<<"$out" || fail "no device: $out"
[ "$(count_agents)" -eq 1 ] || fail "the agent did not outlive its first program"
pid=$(agent_pid)
for fd in /proc/"$pid"/fd/*; do
  case $(readlink "$fd") in
    "$(cat "$work/pipe")" | /dev/pts/* | /dev/tty*) fail "the agent has $(readlink "$fd") open" ;;
  esac
done
[ "$(readlink "/proc/$pid/cwd")" = / ] || fail "the agent's working directory is $(readlink "/proc/$pid/cwd"), not /"
stop_agent

# Fifty programs start at the same time while no agent runs.
first=()
for number in $(seq 50); do
  start run -- ibv_devices >"$work/first$number" 2>&1 &
  first+=($!)
done
for number in $(seq 50); do
  wait "${first[number - 1]}" || fail "first program $number: $(cat "$work/first$number")"
  grep -q verbena0 "$work/first$number" || fail "first program $number: $(cat "$work/first$number")"
done
until_true 30 eval '[ "$(count_agents)" -eq 1 ]' || fail "$(count_agents) agents run, expected 1"
stop_agent

# A process that inherits orphans (a subreaper, or process 1) must not get the agent as a child.
# run_firstborn NAME COMMAND...: runs a command that starts tests/programs/firstborn.c.  The program checks its
# children.
run_firstborn() {
  local name=$1 pid
  shift
  rm -f "$work/firstborn"  # the output of the previous call
  mkfifo "$work/tell"
  "$@" <"$work/tell" >"$work/firstborn" 2>&1 &
  pid=$!
  exec 9>"$work/tell"
  has_printed() { grep -qs "^$1" "$work/firstborn"; }
  until_true 30 has_printed agent || fail "$name: $(cat "$work/firstborn")"
  stop_agent
  echo >&9
  exec 9>&-
  wait $pid || fail "$name: exit $?: $(cat "$work/firstborn")"
  has_printed alone || fail "$name: $(cat "$work/firstborn")"
  rm "$work/tell"
  echo "$name: ok"
}
as_first_process() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    exec unshare --pid --fork --mount-proc "$VB_PREFIX/bin/verbena" run -- "$programs/firstborn"
}
run_firstborn "a subreaper" start run -- "$programs/firstborn" subreaper
unshare --pid --fork --mount-proc true 2>/dev/null || skip "no process namespaces here"
run_firstborn "process 1" as_first_process
