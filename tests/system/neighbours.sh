#!/bin/bash
# Runs programs of two users in one network namespace.  One user gets the port.  The programs of the other user must
# reach only each other, and get a message that reports this.
# Also checks that two network namespaces share nothing.  scripts/isolated provides the second user if root runs the
# test, because a user namespace does not make another user.
. "$(dirname "$0")/lib.sh"
need rping ibv_devinfo ibv_rc_pingpong unshare setpriv ip
chmod 755 "$work"
as_uid_1000=(setpriv --reuid=1000 --regid=1000 --clear-groups --)
"${as_uid_1000[@]}" true 2>/dev/null || skip "root does not run this test, so there is no second user"
unshare --net true 2>/dev/null || skip "network namespaces are not allowed here"

as_second_user() {
  "${as_uid_1000[@]}" env LD_PRELOAD="${VB_PRELOAD:-}" \
    ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 "$VB_PREFIX/bin/verbena" "$@"
}
holder='UDP port 4791 is held by'
names_holder() {  # names_holder WHAT FILE: checks that the output names the holder of the port
  grep -q "verbena: .*reach only each other: $holder" "$2" || fail "$1 does not say who holds the port: $(cat "$2")"
}
# state_of PROGRAM: prints "all" if the user's programs reach other hosts, else "host".
state_of() { "$1" run -- ibv_devinfo 2>&1 | sed -n 's/.*reach only each other.*/host/p; s/.*state:.*PORT_ACTIVE.*/all/p' | head -1; }

# One user starts after the other.  A server keeps the first user's agent alive.
start run -- rping -s -P >"$work/server" 2>&1 &
server=$!
wait_listening 7174
as_second_user run -- ibv_devinfo >"$work/out" 2>"$work/err" || fail "ibv_devinfo: $(cat "$work/err")"
grep -q 'state:.*PORT_ACTIVE' "$work/out" || fail "the second user's port is down: $(cat "$work/out")"
names_holder ibv_devinfo "$work/err"
as_second_user agent status | grep -q "^port *active, but only within this host: $holder" || fail "agent status: $(as_second_user agent status)"
! as_second_user run -- timeout 30 rping -c -a 127.0.0.1 -C 1 >"$work/err" 2>&1 || fail "rping connects to the first user's server"
names_holder "rping -c" "$work/err"
as_second_user run -- timeout 100 rping -s -C 5 -p 7200 >"$work/listener" 2>&1 &
listener=$!
listener_names_holder() { grep -qs "verbena: .*$holder" "$work/listener"; }
until_true 30 listener_names_holder || fail "rping -s does not say who holds the port: $(cat "$work/listener")"
second_listens() { as_second_user ps | grep -q "listening.*:7200"; }
until_true 20 second_listens || fail "rping -s does not listen: $(cat "$work/listener")"
as_second_user run -- timeout 30 rping -c -a 127.0.0.1 -C 5 -p 7200 -V >"$work/err" 2>&1 || fail "the second user's programs: $(cat "$work/err")"
wait $listener || fail "the second user's server: $(cat "$work/listener")"
[ "$(state_of verbena)" = all ] || fail "the first user has lost its port"
verbena run -- timeout 30 rping -c -a 127.0.0.1 -C 5 >"$work/err" 2>&1 || fail "the first user: $(cat "$work/err")"

# The second user's agent must take port 4791 after the first user's agent has ended.  At that time the second user's
# programs have closed their sockets of the other port.
kill $server
verbena agent stop >/dev/null
until_true 30 no_agent || fail "the first user's agent is still there"
second_has_port() { [ "$(state_of as_second_user)" = all ]; }
until_true 20 second_has_port || fail "the second user does not get the port: $(as_second_user agent status)"
as_second_user agent stop >/dev/null
second_agent_has_ended() { as_second_user agent status 2>&1 | grep -q "no agent is running"; }
until_true 30 second_agent_has_ended || fail "the second user's agent is still there"

# If both users start at once, exactly one of them must get the port.
for round in 1 2 3; do
  state_of verbena >"$work/first" &
  one=$!
  state_of as_second_user >"$work/second" &
  two=$!
  wait $one && wait $two || fail "ibv_devinfo failed"
  states=$(sort "$work/first" "$work/second" | xargs)
  [ "$states" = "all host" ] || fail "round $round: the states are $states"
  verbena agent stop >/dev/null
  as_second_user agent stop >/dev/null
  until_true 30 no_agent && until_true 30 second_agent_has_ended || fail "the agents do not end"
done

# Two network namespaces of the same user have the same names and ports, but must share nothing.
cat >"$work/namespace" <<'INNER'
. "$VB_SOURCE/tests/system/lib.sh"
ip link set lo up
start run -- rping -s -C 2000000 >"$work/server" 2>&1 &
server=$!
wait_listening 7174
start run -- rping -c -a 127.0.0.1 -C 2000000 >"$work/client" 2>&1 &
client=$!
two_qps_in_rts() { [ "$(verbena ps | grep -cE '[[:space:]]RC[[:space:]]+RTS[[:space:]]')" -eq 2 ]; }
until_true 20 two_qps_in_rts || fail "verbena ps does not list exactly the pair of this namespace: $(verbena ps)"
agent_pid
read -r _  # waits until both are running
two_qps_in_rts || fail "verbena ps does not list exactly the pair of this namespace while another one has a pair: $(verbena ps)"
kill $client
until_true 30 gone $server || fail "the server does not end"
verbena agent stop >/dev/null
until_true 30 no_agent || fail "the agent is still there"
INNER
namespaces=()
for side in left right; do
  mkfifo "$work/tell-$side"
  unshare --net -- bash "$work/namespace" <"$work/tell-$side" >"$work/$side" 2>&1 &
  namespaces+=($!)
done
exec 8>"$work/tell-left" 9>"$work/tell-right"
both_run() { grep -q '^[0-9]' "$work/left" && grep -q '^[0-9]' "$work/right"; }
until_true 40 both_run || fail "left: $(cat "$work/left") right: $(cat "$work/right")"
[ "$(cat "$work/left")" != "$(cat "$work/right")" ] || fail "both namespaces have agent $(cat "$work/left")"
no_agent || fail "an agent runs outside of the two namespaces"
echo >&8
wait "${namespaces[0]}" || fail "left: $(cat "$work/left")"
echo >&9
wait "${namespaces[1]}" || fail "right: $(cat "$work/right")"
check_nothing_left
