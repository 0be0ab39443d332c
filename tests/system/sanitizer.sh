#!/bin/bash
# ctest: TIMEOUT 120
# In preset asan, unmodified programs must run on instrumented libraries, and a report or a leak must end a program with
# an error.  In the other presets no library is instrumented.
. "$(dirname "$0")/lib.sh"
need rping
programs=$VB_PREFIX/tests/programs

start run -- rping -s -C 20 >"$work/server" 2>&1 &
server=$!
wait_listening 7174
agent=$(agent_pid)
instrumented() { grep -aq __asan_init "$1"; }
for library in libverbena.so.0 libibverbs.so.1 librdmacm.so.1; do
  path=$(grep -o "/[^ ]*/$library" "/proc/$server/maps" | head -1)
  [ "$path" = "$(realpath "$VB_PREFIX/lib/verbena/$library")" ] || fail "rping has loaded '$path'"
  if [ -n "${VB_PRELOAD:-}" ]; then
    instrumented "$path" || fail "$path is not instrumented"
  else
    ! instrumented "$path" || fail "$path is instrumented"
  fi
done
for pid in $server $agent; do
  if [ -n "${VB_PRELOAD:-}" ]; then
    grep -q libasan "/proc/$pid/maps" || fail "pid $pid runs without the sanitizer"
  fi
done

# detect_leaks PROGRAM...: runs a program, which fails if the sanitizer finds a leak.
detect_leaks() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=1:verify_asan_link_order=0 \
    "$VB_PREFIX/bin/verbena" run -- "$@"
}
detect_leaks timeout 60 rping -c -a 127.0.0.1 -C 20 -V >"$work/client" 2>&1 || fail "rping: exit $?: $(tail -40 "$work/client")"
wait $server || fail "the server: $(cat "$work/server")"

result=0
verbena run -- "$programs/misuse" >"$work/misuse" 2>&1 || result=$?
if [ -n "${VB_PRELOAD:-}" ]; then
  [ $result -ne 0 ] && grep -q 'AddressSanitizer: heap-use-after-free' "$work/misuse" ||
    fail "a program's misuse is not reported: exit $result: $(cat "$work/misuse")"
else
  grep -q 'nobody has noticed' "$work/misuse" || fail "exit $result: $(cat "$work/misuse")"
fi
