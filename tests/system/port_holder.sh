#!/bin/bash
# ctest: TIMEOUT 120
# A stopped program cannot close the sockets of its dead agent: until it is continued or killed, the
# next agent's port is DOWN and says for whom it waits.
. "$(dirname "$0")/lib.sh"
need ibv_devinfo python3
crowd=$VB_PREFIX/tests/programs/crowd

begin() {
  rm -f "$work/in"
  mkfifo "$work/in"
  start run -- "$crowd" <"$work/in" >"$work/out" 2>"$work/err" &
  holder=$!
  exec {to}>"$work/in"
}
made() { [ "$(grep -c made "$work/out")" -eq "$1" ]; }
agent_pid() { verbena agent status | sed -n 's/.*\bpid \([0-9]*\),.*/\1/p' | head -1; }
active() { verbena agent status | grep -qE '^ *port +active'; }
# The holder stops, and its agent dies.
strand() {
  echo >&"$to"
  until_true 20 made 1 || fail "no QP: $(cat "$work/err")"
  kill -STOP $holder
  kill -9 "$(agent_pid)"
  verbena run -- ibv_devinfo >"$work/info" 2>"$work/info.err" || fail "ibv_devinfo: $(cat "$work/info.err")"
  grep -q PORT_DOWN "$work/info" || fail "the port is not down: $(cat "$work/info")"
  verbena agent status >"$work/status"
  grep -qE "DOWN: UDP port 4791 is held by pid $holder \(crowd\), which is stopped" "$work/status" ||
    fail "it does not say who holds the port: $(cat "$work/status")"
}

begin
strand
kill -CONT $holder
until_true 10 active || fail "still down: $(verbena agent status)"
echo >&"$to"
until_true 20 made 2 || fail "the holder does not go on: $(cat "$work/err")"
exec {to}>&-
wait $holder || fail "the holder: $(cat "$work/err")"

begin
strand
kill -9 $holder
until_true 10 active || fail "still down: $(verbena agent status)"
verbena run -- ibv_devinfo | grep -q PORT_ACTIVE || fail "the port is not active"
exec {to}>&-
