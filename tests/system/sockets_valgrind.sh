#!/bin/bash
# ctest: PLAIN
# Runs programs at both ends of TCP connections, and the socket service, under memcheck.  It must report no invalid
# access, no use of uninitialized memory, and no leak, while bytes go by the ring.  The test is PLAIN (not in preset
# asan), because Valgrind cannot run programs with AddressSanitizer.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need valgrind ss socat
stream=$VB_PREFIX/tests/programs/stream
memcheck=(valgrind --quiet --error-exitcode=77 --num-callers=30 --track-origins=yes --leak-check=full
  --errors-for-leak-kinds=definite --show-leak-kinds=definite)
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }
# service_field KEY...: prints a field of the service from `verbena sockets stat`.
service_field() { verbena sockets stat --json 2>/dev/null | python3 -c '
import functools, json, sys
print(functools.reduce(dict.__getitem__, sys.argv[1:], json.load(sys.stdin)["service"]))' "$@" 2>/dev/null; }

# The service frees the pages of a ring that has been empty for 1 ms, so that this happens between many calls.
"${memcheck[@]}" "$VB_PREFIX/lib/verbena/verbena-sockets" --idle 600 --ring-idle 0.001 >"$work/service" 2>&1 &
service=$!
service_runs() { [ "$(service_field pid)" = $service ]; }
until_true 60 service_runs || fail "the socket service under memcheck does not answer: $(cat "$work/service")"

# serve COMMAND...: starts a server under memcheck, which must listen on TCP port 20001.
serve() {
  start run --sockets -- "${memcheck[@]}" "$@" >"$work/server" 2>&1 &
  server=$!
  until_true 60 listens_tcp 20001 || fail "the server does not listen: $(cat "$work/server")"
}
# run_stream MODE: transfers 4 MB each way.
run_stream() {
  serve "$stream" serve 20001 4 1 "$1"
  verbena run --sockets -- timeout 60 "${memcheck[@]}" "$stream" call 20001 4 2 "$1" >"$work/client" 2>&1 ||
    fail "$1: the client: exit $?: $(cat "$work/client")"
  wait $server || fail "$1: the server: exit $?: $(cat "$work/server")"
}

# ---- threads, poll(), epoll, fork() and copied descriptors
for mode in threads poll epoll fork dup; do
  # A run may end before the service has made the ring, and then all its bytes go by TCP.
  for runs in 1 2 3 4 5; do
    before=$(service_field total by_ring)
    run_stream $mode
    [ $mode != fork ] && [ "$(service_field total by_ring)" -le "$before" ] || break
    [ $runs -lt 5 ] || fail "$mode: no bytes by the ring in $runs runs"
  done
done

# ---- a child that a program starts with its connection; memcheck ignores leaks here, because socat itself has some
memcheck+=(--leak-check=no)
head -c 300000 /dev/urandom >"$work/file"
serve socat TCP-LISTEN:20001,reuseaddr EXEC:cat
verbena run --sockets -- timeout 60 "${memcheck[@]}" socat -t 20 - TCP:127.0.0.1:20001 \
  <"$work/file" >"$work/copy" 2>"$work/client" ||
  fail "socat: exit $?: $(cat "$work/client")"
cmp "$work/file" "$work/copy" || fail "socat received other bytes"
wait $server || fail "socat, the server: exit $?: $(cat "$work/server")"

kill $service
wait $service || fail "the socket service: exit $?: $(cat "$work/service")"
