# All system tests source this file.  ctest sets VB_PREFIX, VB_SOURCE and VB_PRELOAD.
set -euo pipefail
: "${VB_PREFIX:?the built tree}" "${VB_SOURCE:?the repository}"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $*" >&2
  exit 1
}
skip() {
  echo "$*"
  exit 77
}
# Skips the test if a tool is missing, or if this machine does not allow what the tool does.  Containers may neither
# configure their network (ip) nor make namespaces (unshare).
need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
    case $tool in
      ip) ip link set lo up 2>/dev/null || skip "no right to configure the network here (CAP_NET_ADMIN)" ;;
      unshare) unshare --net true 2>/dev/null || unshare --user true 2>/dev/null || skip "no right to make namespaces here" ;;
    esac
  done
}

# Runs the command `verbena` of the build.  LD_PRELOAD names the sanitizer's runtime in preset asan.
verbena() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    "$VB_PREFIX/bin/verbena" "$@"
}

# Runs the command `verbena` by exec, so that $! is the pid of the program: start run -- PROGRAM... &
start() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    exec "$VB_PREFIX/bin/verbena" "$@"
}

# find_python: prints the path of the Python interpreter itself, because python3 may be a wrapper script, which starts
# many processes.
find_python() { python3 -c 'import sys; print(sys.executable)'; }

# is_member NODE [OPTION...]: succeeds if the node's IPoIB port is in the broadcast group, so that addresses can be
# resolved.  Each OPTION is one of `verbena sa groups`.
is_member() { verbena sa groups --node "$1" "${@:2}" | grep 'ff12:401b:ffff::ffff:ffff .* full ' >/dev/null; }

# until_true SECONDS COMMAND...: repeats the command until it succeeds.  After this time, returns 1.
until_true() {
  local deadline=$((SECONDS + $1 + 1))  # SECONDS has no fractions
  shift
  while ! "$@"; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.05
  done
}

has_listener() { verbena ps | grep -q "listening.*:$1\b"; }
wait_listening() { until_true 20 has_listener "$1" || fail "nothing listens on port $1"; }

# await_listener PORT: sets "await_listener_environment" to variables for `env`.  A client with these variables connects
# only when a program of this host listens on the port (tests/programs/preload/await_listener.c).
await_listener() {
  await_listener_environment=("PATH=$VB_PREFIX/bin:$PATH"
    "AWAIT_LISTENER=for i in \$(seq 200); do LD_PRELOAD= verbena ps | grep -q 'listening.*:$1\b' && exit; sleep 0.05; done; exit 1"
    "LD_PRELOAD=${VB_PRELOAD:+$VB_PRELOAD:}$VB_PREFIX/tests/programs/await_listener.so")
}

# send_newline DESCRIPTOR: writes an empty line to the standard input of a program.
send_newline() { (echo >&"$1") 2>/dev/null || fail "the program has ended: $(cat "$work"/err* "$work"/out*)"; }

# gone PID: succeeds if the process has ended.
gone() { ! kill -0 "$1" 2>/dev/null; }
is_stopped() { grep -q '^State:[[:space:]]*T' "/proc/$1/status"; }
# stop_process PID: stops a process, and waits until it has stopped.
stop_process() { kill -STOP "$1" && until_true 10 is_stopped "$1" || fail "process $1 does not stop"; }

no_agent() { verbena agent status 2>&1 | grep -q "no agent is running"; }

agent_pid() { verbena agent status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["agent"]["pid"])'; }

# Succeeds if no agent, fabric or reaper runs in this namespace.
no_verbena_process() {
  local process
  for process in /proc/[0-9]*; do
    case $(readlink "$process/exe" 2>/dev/null) in *verbenad | *verbena-fabric) return 1 ;; esac
    case $(cat "$process/comm" 2>/dev/null) in verbena-reaper) return 1 ;; esac
  done
}
# Fails the test if a process, socket, memory or file of Verbena remains after the agent has ended.  REQUIRES: no other
# agent runs in this namespace (scripts/isolated).
check_nothing_left() {
  local leftover
  # The agent first releases its name, and its process ends a moment later.
  until_true 20 no_verbena_process || fail "an agent or a reaper is left"
  [ -z "$(ss -xlH 2>/dev/null | grep verbena)" ] || fail "a socket is left: $(ss -xl | grep verbena)"
  [ -z "$(ss -uanH 2>/dev/null)" ] || fail "UDP sockets are left: $(ss -uanp)"
  for leftover in /dev/shm/*verbena* /tmp/*verbena[-_]* "${XDG_RUNTIME_DIR:-/nonexistent}"/*verbena*; do
    # Fabrics of other tests may have such directories at the same time.  A test that checks them sets TMPDIR.
    case $leftover in *verbena-system-tests* | /tmp/verbena-fabric-*) continue ;; esac
    [ ! -e "$leftover" ] || fail "left behind: $leftover"
  done
}
