#!/bin/bash
# A stopped program cannot close the sockets that it got from a dead agent.  Until the program is continued or killed,
# the port of the next agent must be DOWN, and the reason must name the program.
. "$(dirname "$0")/lib.sh"
need ibv_devinfo python3
crowd=$VB_PREFIX/tests/programs/crowd

start_holder() {
  rm -f "$work/in"
  mkfifo "$work/in"
  start run -- "$crowd" <"$work/in" >"$work/out" 2>"$work/err" &
  holder=$!
  exec {to}>"$work/in"
}
has_made() { [ "$(grep -c made "$work/out")" -eq "$1" ]; }
agent_pid() { verbena agent status | sed -n 's/.*\bpid \([0-9]*\),.*/\1/p' | head -1; }
is_active() { verbena agent status | grep -qE '^ *port +active'; }
# Stops the program that holds the port, kills its agent, and checks that the port of the next agent is DOWN.
leave_stopped_holder() {
  send_newline "$to"
  until_true 20 has_made 1 || fail "no QP: $(cat "$work/err")"
  stop_process $holder
  kill -9 "$(agent_pid)"
  verbena run -- ibv_devinfo >"$work/info" 2>"$work/info.err" || fail "ibv_devinfo: $(cat "$work/info.err")"
  grep -q PORT_DOWN "$work/info" || fail "the port is not down: $(cat "$work/info")"
  verbena agent status >"$work/status"
  grep -qE "DOWN: UDP port 4791 is held by pid $holder \(crowd\), which is stopped" "$work/status" ||
    fail "agent status does not name the holder: $(cat "$work/status")"
}

start_holder
leave_stopped_holder
kill -CONT $holder
until_true 30 is_active || fail "still down: $(verbena agent status)"
send_newline "$to"
until_true 20 has_made 2 || fail "the holder does not continue: $(cat "$work/err")"
exec {to}>&-
wait $holder || fail "the holder: $(cat "$work/err")"

start_holder
leave_stopped_holder
kill -9 $holder
until_true 30 is_active || fail "still down: $(verbena agent status)"
verbena run -- ibv_devinfo | grep -q PORT_ACTIVE || fail "the port is not active"
exec {to}>&-

# This holder behaves like a program that has not yet noticed the death of its agent: it frees the port after a moment.
# The next agent must wait for the port before it serves programs.
verbena agent stop >/dev/null
until_true 20 no_verbena_process || fail "the agent is still there: $(verbena agent status)"
python3 - >"$work/lazy" <<'PYTHON' &
import socket, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(("::", 4791))
print("bound", flush=True)
while "@verbena-" not in open("/proc/net/unix").read():  # the agent has started when its socket exists
    time.sleep(0.01)
time.sleep(0.2)  # the agent must wait this long
s.close()
PYTHON
until_true 20 grep -q bound "$work/lazy" || fail "the program that holds the port did not start"
verbena run -- ibv_devinfo >"$work/info" 2>&1 || fail "ibv_devinfo: $(cat "$work/info")"
grep -q PORT_ACTIVE "$work/info" || fail "the agent did not wait for the port: $(cat "$work/info")"
