#!/bin/bash
# ctest: PLAIN
# Another user may take the abstract names of Verbena's services, and accept nobody.  Programs and tools must not wait
# for such a process, and `verbena doctor` must name it.
# The test is PLAIN (not in preset asan), because it starts the command under timeout(1), without the sanitizer's runtime.
. "$(dirname "$0")/lib.sh"
need ibv_devinfo setpriv python3
chmod 755 "$work"
export VERBENA_IDLE=600  # the agent ends when the test stops it
setpriv --reuid=1000 --regid=1000 --clear-groups true 2>/dev/null || skip "root does not run this test, so there is no second user"

# take NAME...: another user takes these names until `release`, and fills the backlogs.
take() {
  mkfifo "$work/in"
  python3 -c '
import os, socket, sys
os.setgroups([])
os.setgid(1000)
os.setuid(1000)
sockets = []
for name in sys.argv[1:]:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("\0" + name)
    listener.listen(0)
    sockets.append(listener)
    while True:
        client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        client.setblocking(False)
        try:
            client.connect("\0" + name)
        except BlockingIOError:
            break
        sockets.append(client)
print("held", flush=True)
sys.stdin.read()' "$@" <"$work/in" >"$work/held" &
  squatter=$!
  exec {to}>"$work/in"
  until_true 20 grep -qs held "$work/held" || fail "the test cannot take the names"
}
release() {
  exec {to}>&-
  wait $squatter
  rm "$work/in"
}
# A program that waits for the squatter waits for 10 s for each name.
soon() { timeout 9 "$VB_PREFIX/bin/verbena" "$@"; }

take verbena-0-all verbena-0-sockets
soon run -- ibv_devinfo >"$work/out" 2>&1 || fail "a program waits for the agent for all users: $(cat "$work/out")"
soon ps >"$work/out" || fail "ps waits for the agent for all users"
verbena doctor >"$work/doctor" || fail "doctor finds a problem: $(cat "$work/doctor")"
for whose in "root's agent for all users" "root's socket service"; do
  grep -E "^note +names: a process of .* \(uid 1000\) has the name of $whose" "$work/doctor" ||
    fail "doctor does not name the holder of the name of $whose: $(cat "$work/doctor")"
done
! soon run --sockets -- true >"$work/out" 2>&1 || fail "a socket service has the name of another user's process"
grep "another user has taken the name" "$work/out" || fail "run --sockets says: $(cat "$work/out")"
! soon agent start --all-users >"$work/out" 2>&1 || fail "another user's process is taken for the agent"
release
verbena agent stop >/dev/null
until_true 20 no_verbena_process || fail "the agent is still there"

take verbena-0
! soon run -- ibv_devinfo >"$work/out" 2>&1 || fail "another user's process is taken for the agent"
grep "held by a process of another user (uid 1000)" "$work/out" || fail "run does not name the holder: $(cat "$work/out")"
! soon doctor >"$work/doctor" || fail "doctor finds nothing: $(cat "$work/doctor")"
grep -E "^problem +agent: a process of another user \(uid 1000\) has the name" "$work/doctor" || fail "doctor: $(cat "$work/doctor")"
release
