#!/bin/bash
# ctest: PLAIN
# A program with more rights than its caller must ignore the caller's environment: no VERBENA_* variable may reach the
# agent, and only the agent in the library's directory may start.  The test is PLAIN because such a program ignores
# LD_PRELOAD, and so cannot load a sanitizer's runtime.
. "$(dirname "$0")/lib.sh"
need unshare python3
chmod 755 "$work"

if [ "${1:-}" != inside ]; then
  # Run the rest of the test as an ordinary user, in a mount namespace in which files may have capabilities.
  unshare --user --map-root-user --mount true 2>/dev/null || [ "$(id -u)" -eq 0 ] ||
    skip "user namespaces are not allowed here"
  mkdir "$work/files"
  unshare --user --map-root-user --mount -- "$0" inside "$work" || exit
  exit
fi
rmdir "$work"  # this run uses the directory of the first run, which removes it
work=$2
trap - EXIT
if [ "$(id -u)" -eq 0 ]; then
  mount -t tmpfs -o mode=755 tmpfs "$work/files" || skip "no tmpfs can be mounted here"
  cp "$VB_PREFIX/tests/programs/privileged" "$work/files/"
  # The program gets cap_net_bind_service, permitted and effective.  Any capability would do.
  python3 -c 'import os, struct, sys
os.setxattr(sys.argv[1], "security.capability", struct.pack("<5I", 0x02000001, 1 << 10, 0, 0, 0))' \
    "$work/files/privileged" || skip "files cannot carry capabilities here"
  # "links" has links to the libraries.  The agent is in the directory of the files that the links point to.  "alone"
  # has copies of the libraries, without an agent.
  mkdir "$work/files/links" "$work/files/alone"
  for library in libverbena.so.0 libibverbs.so.1 librdmacm.so.1; do
    ln -s "$(readlink -f "$VB_PREFIX/lib/verbena/$library")" "$work/files/links/$library"
    cp "$VB_PREFIX/lib/verbena/$library" "$work/files/alone/"
  done
  printf '#!/bin/sh\n: >"%s/ran"\nexec "%s" "$@"\n' "$work/files" "$VB_PREFIX/lib/verbena/verbenad" \
    >"$work/files/agent"
  chmod 755 "$work/files/agent"
  chmod 777 "$work/files"
  unshare --user --map-user=1000 --map-group=1000 -- "$0" inside "$work"
  exit
fi

program=$work/files/privileged
# run_hostile LIBRARIES: runs the program with an attacker's environment.
run_hostile() {
  VERBENA_AGENT=$work/files/agent VERBENA_LOG=$work/files/log VERBENA_TRACE=1 VERBENA_VERBOSE=1 \
    VERBENA_IDLE=0 VERBENA_BIND=192.0.2.1 VERBENA_PERSONALITY=none HOME=$work/files/home \
    "$program" "$1" "${@:2}"
}

# The agent in the library's directory must run, and must get no variable of the environment.
mkfifo "$work/files/in"
run_hostile "$work/files/links" <"$work/files/in" >"$work/files/out" 2>"$work/files/err" &
running=$!
exec {to}>"$work/files/in"
has_opened_device() { grep -q open "$work/files/out" || gone $running; }
until_true 20 has_opened_device || fail "the program hangs"
grep -q privileged "$work/files/out" || skip "programs with file capabilities are not privileged here"
grep -q open "$work/files/out" || fail "no device: $(cat "$work/files/out" "$work/files/err")"
agent=$(agent_pid)
[ "$(readlink "/proc/$agent/exe")" = "$(readlink -f "$VB_PREFIX/lib/verbena/verbenad")" ] ||
  fail "another agent runs: $(readlink "/proc/$agent/exe")"
if tr '\0' '\n' <"/proc/$agent/environ" | grep .; then fail "the agent has environment variables"; fi
[ ! -e "$work/files/log" ] || fail "a file was created"
[ ! -e "$work/files/ran" ] || fail "the environment's agent was run"
verbena agent stop >/dev/null || fail "the agent does not stop"
exec {to}>&-
wait $running || fail "the program: $(cat "$work/files/err")"

# If no agent is in the library's directory, none may start.
until_true 20 no_agent || fail "an agent runs"
if run_hostile "$work/files/alone" </dev/null >"$work/files/out" 2>"$work/files/err"; then
  fail "a device is shown without an agent: $(cat "$work/files/out")"
fi
[ ! -e "$work/files/ran" ] || fail "the environment's agent was run"
no_agent || fail "an agent was started"

# The same program without extra rights must use the environment.
cp "$program" "$work/files/ordinary"
VERBENA_AGENT=$work/files/agent VERBENA_IDLE=0 "$work/files/ordinary" "$work/files/alone" </dev/null \
  >"$work/files/out" 2>"$work/files/err" || fail "VERBENA_AGENT: $(cat "$work/files/err")"
[ -e "$work/files/ran" ] || fail "VERBENA_AGENT was not run"
