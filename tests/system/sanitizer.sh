#!/bin/bash
# In preset asan, unmodified programs must run on instrumented libraries without leaks.  If a program passes freed
# memory to a library, the sanitizer must report this, and the program must end with an error.  In the other presets no
# library may be instrumented.
. "$(dirname "$0")/lib.sh"
need rping ss
programs=$VB_PREFIX/tests/programs

start run -- rping -s -C 20 >"$work/server" 2>&1 &
server=$!
wait_listening 7174
agent=$(agent_pid)
is_instrumented() { grep -aq __asan_init "$1"; }
# check_library PID NAME: fails if the process has not loaded the library of this preset.  Fails also if the library is
# not instrumented in preset asan, or is instrumented in another preset.
check_library() {
  local path
  path=$(grep -o "/[^ ]*/$2" "/proc/$1/maps" | head -1)
  [ "$path" = "$(realpath "$VB_PREFIX/lib/verbena/$2")" ] || fail "process $1 has loaded '$path'"
  if [ -n "${VB_PRELOAD:-}" ]; then
    is_instrumented "$path" || fail "$path is not instrumented"
  else
    ! is_instrumented "$path" || fail "$path is instrumented"
  fi
}
for library in libverbena.so.0 libibverbs.so.1 librdmacm.so.1; do check_library $server $library; done

start run --sockets -- "$programs/stream" serve 20001 1 1 >"$work/stream" 2>&1 &
stream=$!
listens_tcp() { ss -Htln "sport = :20001" | grep -q .; }
until_true 20 listens_tcp || fail "stream does not listen: $(cat "$work/stream")"
check_library $stream libverbena-sockets.so.0
service=$(verbena sockets stat --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["service"]["pid"])')
for pid in $server $agent $stream $service; do
  if [ -n "${VB_PRELOAD:-}" ]; then
    grep -qF "$VB_PRELOAD" "/proc/$pid/maps" || fail "pid $pid runs without the sanitizer"
  fi
done

# detect_leaks OPTION... -- PROGRAM...: runs a program, which fails if the sanitizer finds a leak.
detect_leaks() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=1:verify_asan_link_order=0 \
    "$VB_PREFIX/bin/verbena" run "$@"
}
detect_leaks --sockets -- timeout 60 "$programs/stream" call 20001 1 2 >"$work/client" 2>&1 ||
  fail "stream: exit $?: $(tail -40 "$work/client")"
wait $stream || fail "the server of stream: $(cat "$work/stream")"
detect_leaks -- timeout 60 rping -c -a 127.0.0.1 -C 20 -V >"$work/client" 2>&1 || fail "rping: exit $?: $(tail -40 "$work/client")"
wait $server || fail "the server: $(cat "$work/server")"

result=0
verbena run -- "$programs/misuse" >"$work/misuse" 2>&1 || result=$?
if [ -n "${VB_PRELOAD:-}" ]; then
  [ $result -ne 0 ] && grep -q 'AddressSanitizer: heap-use-after-free' "$work/misuse" ||
    fail "a program's misuse is not reported: exit $result: $(cat "$work/misuse")"
else
  grep -q 'nobody has noticed' "$work/misuse" || fail "exit $result: $(cat "$work/misuse")"
fi
