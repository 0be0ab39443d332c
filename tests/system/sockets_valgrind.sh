#!/bin/bash
# ctest: TIMEOUT 300 PLAIN
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
went_by_ring() { [ "$(service_field total by_ring)" -gt "$before" ]; }

# ---- threads, poll(), epoll, fork() and copied descriptors
for mode in threads poll epoll fork dup; do
  before=$(service_field total by_ring)
  serve "$stream" serve 20001 4 1 $mode
  verbena run --sockets -- timeout 60 "${memcheck[@]}" "$stream" call 20001 4 2 $mode >"$work/client" 2>&1 ||
    fail "$mode: the client: exit $?: $(cat "$work/client")"
  wait $server || fail "$mode: the server: exit $?: $(cat "$work/server")"
  [ "$mode" = fork ] || until_true 10 went_by_ring || fail "$mode: only $(service_field total by_ring) bytes by the ring"
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
