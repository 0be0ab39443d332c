#!/bin/bash
# Runs programs as in a plain container: no capabilities, a filter of system calls, a read-only root, a small /dev/shm,
# low limits, and receive buffers of the kernel's default size.
. "$(dirname "$0")/lib.sh"
need rping ibv_rc_pingpong unshare ss
programs=$VB_PREFIX/tests/programs

case "${1:-}" in
  "")
    unshare --mount true 2>/dev/null || skip "no mount namespaces here"
    unshare --mount -- bash "$0" mounts
    exit
    ;;
  mounts)
    # As a mount of its own, /tmp stays writable when the root becomes read-only.  The test's files are below /tmp.
    mount --bind /tmp /tmp
    mount -t tmpfs -o size=64m tmpfs /dev/shm
    mount -o remount,bind,ro /
    unshare --user --map-user=1000 --map-group=1000 true 2>/dev/null ||
      skip "user namespaces are not allowed here"
    unshare --user --map-user=1000 --map-group=1000 -- bash "$0" inside
    exit
    ;;
esac

# Checks that the container has the intended restrictions.
[ "$(id -u)" -eq 1000 ] || fail "not an ordinary user"
! touch /usr/written 2>/dev/null || fail "the root can be written to"
[ "$(df --output=size -k /dev/shm | tail -1)" -eq 65536 ] || fail "/dev/shm: $(df /dev/shm)"
! "$programs/confined" unshare --user true 2>/dev/null || fail "the filter does not work"
[ "$("$programs/confined" bash -c 'ulimit -Sn; ulimit -l' | xargs)" = "1024 8192" ] || fail "the limits are not set"

verbena() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    "$programs/confined" "$VB_PREFIX/bin/verbena" "$@"
}
start() {
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    exec "$programs/confined" "$VB_PREFIX/bin/verbena" "$@"
}

start run -- rping -s -C 200 -S 60000 -V >"$work/server" 2>&1 &
server=$!
wait_listening 7174
# The receive buffers must have the kernel's default size.
sizes=$(ss -uanmH 'sport = :4791' | grep -o 'rb[0-9]*' | sort -u)
[ "$sizes" = "rb$(cat /proc/sys/net/core/rmem_default)" ] || fail "receive buffers: $sizes"
verbena run -- timeout 60 rping -c -a 127.0.0.1 -C 200 -S 60000 -V >"$work/client" 2>&1 ||
  fail "rping: exit $?: $(cat "$work/client") $(tail -3 "$work/server")"
wait $server || fail "rping -s: exit $?: $(tail -3 "$work/server")"

listens_tcp() { [ -n "$(ss -tlnH "sport = :$1")" ]; }
for bytes in 4096 1048576; do
  start run -- ibv_rc_pingpong -g 0 -n 50 -s $bytes >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp 18515 || fail "no server: $(cat "$work/server")"
  verbena run -- timeout 60 ibv_rc_pingpong -g 0 -n 50 -s $bytes 127.0.0.1 >"$work/client" 2>&1 ||
    fail "ibv_rc_pingpong, $bytes bytes: exit $?: $(cat "$work/client")"
  wait $server || fail "ibv_rc_pingpong, $bytes bytes: the server: $(cat "$work/server")"
done

# `verbena ps` must show a connected pair.
start run -- rping -s >"$work/server" 2>&1 &
server=$!
wait_listening 7174
start run -- rping -c -a 127.0.0.1 -C 100000000 >"$work/client" 2>&1 &
client=$!
two_qps_in_rts() { [ "$(verbena ps | grep -cE '[[:space:]]RC[[:space:]]+RTS[[:space:]]')" -eq 2 ]; }
until_true 20 two_qps_in_rts || fail "not a connected pair: $(verbena ps)"
kill $client
until_true 10 gone $server || fail "the server does not end"
