#!/bin/bash
# In a Docker container without privileges, system tests that need namespaces must be skipped with a reason.  A test
# that was killed must not disturb the next one.
. "$(dirname "$0")/lib.sh"
need unshare setpriv ip

# Makes a container without the rights to configure the network or to make namespaces.  All other rights are Docker's
# defaults.
cat >"$work/confine" <<'E2'
for kind in user net mnt pid; do echo 0 >"/proc/sys/user/max_${kind}_namespaces"; done
rights=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service
exec setpriv --bounding-set="$rights,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap" --inh-caps=-all -- "$@"
E2
confined() {
  unshare --user --map-root-user --net --pid --fork --kill-child --mount-proc -- \
    env "TMPDIR=$work" bash -c 'ip link set lo up && . "$0"' "$work/confine" "$@"
}
confined true 2>/dev/null || skip "this system does not allow namespaces inside namespaces"
confined bash -c '! unshare --net true && ! unshare --user true && ! ip addr add 10.99.0.9/32 dev lo' 2>/dev/null ||
  fail "the container has more rights than Docker's"

# Runs each test that needs more rights than the container has.
cat >"$work/all" <<'E2'
count=0
cd "$VB_SOURCE/tests/system"
for test in $(grep -lE '^need .*\b(ip|unshare)\b|wire/lib\.sh' *.sh); do
  case $test in lib*.sh) continue ;; esac
  result=0
  output=$(bash "$test" 2>&1 </dev/null) || result=$?
  [ $result -eq 77 ] && [ -n "$output" ] || { echo "$test: exit $result, not 77 with a reason: $output"; exit 1; }
  count=$((count + 1))
done
[ $count -ge 20 ] || { echo "only $count tests need more rights"; exit 1; }
echo "$count tests are skipped with a reason where they cannot run"
E2
output=$(confined bash "$work/all") || fail "$output"
echo "$output"

# Kills scripts/isolated in the middle of a test.  The next run must not wait for the lock of the killed one, and must
# end its remaining processes.
cat >"$work/killed" <<'E2'
isolated=$1 work=$2
mkfifo "$work/pid"
"$isolated" bash -c 'echo $$ >"$1"; exec sleep 1000' sleeper "$work/pid" 2>/dev/null &
first=$!
read -r sleeper <"$work/pid"
kill -KILL $first
wait $first 2>/dev/null
[ "$(timeout 20 "$isolated" echo next 2>/dev/null)" = next ] || { echo "the lock is held"; exit 1; }
! kill -0 "$sleeper" 2>/dev/null || { echo "the killed test still runs"; exit 1; }
# scripts/isolated must pass on the command's input, output and exit code.
[ "$(echo word | "$isolated" cat 2>/dev/null)" = word ] || { echo "standard input is lost"; exit 1; }
result=0
"$isolated" bash -c 'exit 77' 2>/dev/null || result=$?
[ $result -eq 77 ] || { echo "exit $result, not 77"; exit 1; }
# A process that the test leaves behind must end with it.
"$isolated" bash -c 'sleep 1000 & echo $! >"$1"' sleeper "$work/pid" 2>/dev/null &
first=$!
read -r sleeper <"$work/pid"
wait $first || { echo "exit $?, not 0"; exit 1; }
! kill -0 "$sleeper" 2>/dev/null || { echo "a process survives the end of its test"; exit 1; }
# SIGTERM must reach all processes of the test.
"$isolated" bash -c 'sleep 1000 & echo $! >"$1"; wait' sleeper "$work/pid" 2>/dev/null &
first=$!
read -r sleeper <"$work/pid"
kill $first
result=0
wait $first || result=$?
[ $result -eq 143 ] || { echo "exit $result after SIGTERM, not 143"; exit 1; }
! kill -0 "$sleeper" 2>/dev/null || { echo "a process of the test survives SIGTERM"; exit 1; }
E2
output=$(VB_PREFIX='' confined bash "$work/killed" "$VB_SOURCE/scripts/isolated" "$work") || fail "isolated: $output"
