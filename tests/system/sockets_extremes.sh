#!/bin/bash
# Tests extremes of `verbena run --sockets`: 10,000 connections one after the other, writes of 64 MB and of one byte,
# programs that use all of their descriptors, a small /dev/shm, and one processor.  The output must be the same as by
# TCP.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export VERBENA_IDLE=600  # so that one service counts the bytes of all programs
need python3

cat >"$work/extremes.py" <<'PY'
import hashlib, os, resource, signal, socket, sys, threading

listener = socket.create_server(("127.0.0.1", 0), backlog=1000)
signal.alarm(200)  # ends the test if a call never returns

def in_child(work):
    """Runs the work in another process.  Returns a function that waits for its end."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return lambda: os.waitpid(child, 0)[1]

def connections_one_after_the_other(count=10000):
    def client():
        for i in range(count):
            with socket.create_connection(listener.getsockname()) as here:
                here.sendall(b"%d" % i)
                assert here.recv(100) == b"%d" % i
    end = in_child(client)
    for i in range(count):
        with listener.accept()[0] as there:
            there.sendall(there.recv(100))
            assert there.recv(100) == b""
    return count, end()

def stream(write_bytes, total):
    """Sends `total` bytes in calls of `write_bytes`, and answers with a byte every megabyte."""
    text = bytes(range(251)) * (write_bytes // 251 + 1)
    def client():
        with socket.create_connection(listener.getsockname()) as here:
            for _ in range(10):  # so that the connection gets a ring
                here.sendall(b"x" * 5000)
                here.recv(1)
            sent = 0
            while sent < total:
                here.sendall(text[:write_bytes])
                sent += write_bytes
            assert here.recv(1) == b"!"
    end = in_child(client)
    there = listener.accept()[0]
    for _ in range(10):
        assert len(there.recv(5000, socket.MSG_WAITALL)) == 5000
        there.sendall(b".")
    digest, got = hashlib.sha256(), 0
    while got < total:
        piece = there.recv(1 << 20)
        assert piece
        digest.update(piece)
        got += len(piece)
    there.sendall(b"!")
    return got, digest.hexdigest(), end()

def all_descriptors(limit):
    """Opens connections until no descriptor is left, and uses them."""
    def program():
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        pairs, own_listener = [], socket.create_server(("127.0.0.1", 0))
        try:
            while True:
                here = socket.create_connection(own_listener.getsockname())
                pairs.append((here, own_listener.accept()[0]))
        except OSError as error:
            print(error.strerror, end=" ")
        for _ in range(20):
            for here, there in pairs:
                for one, other in ((here, there), (there, here)):
                    one.sendall(b"y" * 1000)
                    assert len(other.recv(1000, socket.MSG_WAITALL)) == 1000
        print("enough" if 2 * len(pairs) > limit - 32 else len(pairs), flush=True)
    return in_child(program)()

print(connections_one_after_the_other())
print(stream(64 << 20, 256 << 20))
print(stream(1, 200000))
for limit in (64, 256, 1024):
    print(limit, end=" ", flush=True)
    print(all_descriptors(limit))
PY

bytes_by_ring() { verbena sockets stat --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["service"]["total"]["by_ring"])'; }
timeout 250 python3 "$work/extremes.py" >"$work/by_tcp" 2>&1 || fail "by TCP: $(cat "$work/by_tcp")"
# A full /dev/shm must not matter, since rings are memfds.  Only the program and its service see this small /dev/shm.
# shellcheck disable=SC2016  # the inner shell expands this
small_shm=(unshare --mount bash -c 'mount -t tmpfs -o size=4k none /dev/shm && exec "$@"' small_shm)
if ! "${small_shm[@]}" true 2>/dev/null; then
  echo "no right to mount here: /dev/shm has its usual size"
  small_shm=()
fi
# The long transfer of a run may end before the service has made the ring, and then its bytes go by TCP.
for runs in 1 2 3; do
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    "${small_shm[@]}" "$VB_PREFIX/bin/verbena" run --sockets -- timeout 250 python3 "$work/extremes.py" >"$work/by_ring" 2>&1 ||
    fail "$(cat "$work/by_ring")"
  diff "$work/by_tcp" "$work/by_ring" || fail "the output differs from the output by TCP"
  bytes=$(bytes_by_ring)
  [ "$bytes" -le $((16 << 20)) ] || break
  [ $runs -lt 3 ] || fail "few bytes went by the ring in $runs runs: $bytes"
done
verbena run --sockets -- timeout 250 taskset -c "$(taskset -cp $$ | grep -oE '[0-9]+$')" python3 "$work/extremes.py" >"$work/by_ring" 2>&1 ||
  fail "on one processor: $(cat "$work/by_ring")"
diff "$work/by_tcp" "$work/by_ring" || fail "on one processor, the output differs from the output by TCP"
cat "$work/by_tcp"
