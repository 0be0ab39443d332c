#!/bin/bash
# A user who is root in a user namespace (unshare --map-root-user) has a separate agent, which must not use the name of
# root's agent.  `verbena doctor` must name the process that has the agent's name or port 4791, and say what to do.
. "$(dirname "$0")/lib.sh"
need ibv_devinfo unshare setpriv python3
chmod 755 "$work"
export VERBENA_IDLE=600  # the agents end when the test stops them
# The second user is the one that scripts/isolated provides when root runs the test.
as_uid_1000=(setpriv --reuid=1000 --regid=1000 --clear-groups --)
"${as_uid_1000[@]}" true 2>/dev/null || skip "root does not run this test, so there is no second user"
"${as_uid_1000[@]}" unshare --user --map-root-user true 2>/dev/null || skip "this system does not allow user namespaces inside user namespaces"

as_second_user() {
  "${as_uid_1000[@]}" env LD_PRELOAD="${VB_PRELOAD:-}" \
    ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 "$@"
}
# doctor_says PATTERN...: checks that root's doctor reports a problem, and that its output has all patterns.
doctor_says() {
  local pattern
  verbena doctor >"$work/doctor" && fail "doctor finds nothing: $(cat "$work/doctor")"
  for pattern in "$@"; do
    grep -qE "$pattern" "$work/doctor" || fail "doctor does not say '$pattern': $(cat "$work/doctor")"
  done
}

# The second user is root in a user namespace, and starts an agent there, which holds the port.
mkfifo "$work/in"
as_second_user unshare --user --map-root-user -- "$VB_PREFIX/bin/verbena" run -- \
  bash -c 'ibv_devinfo && exec cat' <"$work/in" >"$work/other" 2>&1 &
other=$!
exec {to}>"$work/in"
until_true 20 grep -qs 'state:.*PORT_ACTIVE' "$work/other" || fail "no port: $(cat "$work/other")"

# Root's agent must get its name, and root must get a message that names the holder of the port.
verbena run -- ibv_devinfo >"$work/out" 2>"$work/err" || fail "root's name is taken: $(cat "$work/err")"
grep -q 'reach only each other: UDP port 4791 is held by' "$work/err" || fail "two agents have the port: $(cat "$work/err")"
doctor_says '^problem +UDP port 4791: .*held by pid [0-9]+ \(verbenad\)' '^ +-> .*VERBENA_BIND=ADDRESS'
# Outside of the namespace, the second user must reach the agent that was started in the namespace.
as_second_user "$VB_PREFIX/bin/verbena" run -- ibv_devinfo | grep -q PORT_ACTIVE || fail "the second user's agent is not found"
verbena agent stop >/dev/null
exec {to}>&-
wait $other || fail "the second user's program: $(cat "$work/other")"
as_second_user "$VB_PREFIX/bin/verbena" agent stop >/dev/null
until_true 20 no_verbena_process || fail "an agent is still there"

# Doctor must name a process of another user that has the name of root's agent.
rm "$work/in"
mkfifo "$work/in"
as_second_user python3 -c '
import os, socket, sys
sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
sock.bind("\0verbena-0")
sock.listen()
print("held", os.getpid(), flush=True)
sys.stdin.read()' <"$work/in" >"$work/held" &
running=$!
exec {to}>"$work/in"
until_true 20 grep -qs held "$work/held" || fail "the test cannot bind the name of root's agent"
read -r _ holder <"$work/held"
doctor_says "^problem +agent: pid $holder \(python3\) of another user \(uid 1000\) has the name"
! verbena run -- ibv_devinfo >"$work/err" 2>&1 || fail "another user's agent is used"
grep -q "pid $holder (python3) of another user" "$work/err" || fail "run does not name the holder: $(cat "$work/err")"
exec {to}>&-
wait $running
