# What the system tests share.  Source it; VB_PREFIX, VB_SOURCE and VB_PRELOAD come from ctest.
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
need() {
  local tool
  for tool in "$@"; do
    command -v "$tool" >/dev/null || skip "$tool is not installed"
  done
}

# The command under test.  LD_PRELOAD: the sanitizer's runtime, where there is one.
verbena() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    "$VB_PREFIX/bin/verbena" "$@"
}

# The same for the background, where $! must be the program's own pid: start run -- PROGRAM... &
start() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    exec "$VB_PREFIX/bin/verbena" "$@"
}

# until_true SECONDS COMMAND...: waits for something another process will do.
until_true() {
  local deadline=$((SECONDS + $1))
  shift
  while ! "$@"; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.05
  done
}

listening() { verbena ps | grep -q "listening.*:$1\b"; }
wait_listening() { until_true 20 listening "$1" || fail "nothing listens on port $1"; }

gone() { ! kill -0 "$1" 2>/dev/null; }
no_agent() { verbena agent status 2>&1 | grep -q "no agent is running"; }
