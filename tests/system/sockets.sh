#!/bin/bash
# Tests `verbena run --sockets`, which moves the bytes of TCP connections between programs of one host through memory.
# The bytes must arrive as by TCP: with threads, poll(), fork() and copied descriptors, and with a peer without Verbena.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export VERBENA_IDLE=600  # so that one service counts the bytes of all programs
need ss curl python3
stream=$VB_PREFIX/tests/programs/stream

# serve COMMAND...: starts a server, and sets $server to its pid.
serve() {
  start run --sockets -- "$@" >"$work/server" 2>&1 &
  server=$!
}
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }
# wait_tcp_listener PORT: waits until a program listens on the TCP port.
wait_tcp_listener() { until_true 60 listens_tcp "$1" || fail "nothing listens on TCP port $1: $(cat "$work/server")"; }
# service_counter NAME: prints a counter of the socket service.
service_counter() { verbena sockets stat --json | python3 -c '
import json, sys
service = json.load(sys.stdin)["service"]
print(service["total"].get(sys.argv[1], service.get(sys.argv[1])))' "$1"; }

# ---- all bytes arrive unchanged, and many of them by the ring
# until_by_ring BYTES COMMAND...: repeats the command until more than BYTES bytes went by the ring during one run.  A
# run may end before the service has made the ring, and then all its bytes go by TCP.  After 20 runs, returns 1.
until_by_ring() {
  local bytes=$1 before
  shift
  for _ in $(seq 20); do
    before=$(service_counter by_ring 2>/dev/null || echo 0)
    "$@"
    [ "$(service_counter by_ring)" -le $((before + bytes)) ] || return 0
  done
  return 1
}
# run_stream MODE: transfers 64 MB each way.
run_stream() {
  serve timeout 60 "$stream" serve 20001 64 1
  wait_tcp_listener 20001
  verbena run --sockets -- timeout 60 "$stream" call 20001 64 2 "$1" >"$work/client" 2>&1 ||
    fail "$1: $(cat "$work/client")"
  wait $server || fail "$1: the server: $(cat "$work/server")"
  grep -q '^67108864 bytes each way$' "$work/client" || fail "$1: $(cat "$work/client")"
}
for mode in threads poll epoll dup; do
  until_by_ring 100000 run_stream $mode || fail "$mode: no bytes by the ring: $(verbena sockets stat)"
done
run_stream fork

# ---- a connection with a program without Verbena stays on TCP
before=$(service_counter pairs_made)
serve timeout 60 "$stream" serve 20002 4 3
wait_tcp_listener 20002
timeout 60 "$stream" call 20002 4 4 threads >"$work/client" || fail "a client without Verbena: $(cat "$work/client")"
wait $server || fail "a server whose client has no Verbena: $(cat "$work/server")"
[ "$(service_counter pairs_made)" -eq "$before" ] || fail "a connection with a program without Verbena has a ring"
verbena run --sockets=off -- timeout 5 "$stream" call 20002 1 1 >"$work/client" 2>&1 && fail "a client connects although the server has ended"
grep -q 'Connection refused' "$work/client" || fail "a refused connection says: $(cat "$work/client")"

# ---- curl and Python's http.server exchange the right bytes
head -c 5000000 /dev/urandom >"$work/file"
serve timeout 60 python3 -m http.server 20003 --bind 127.0.0.1 --directory "$work"
wait_tcp_listener 20003
fetch=(curl -sS -o "$work/copy")
# curl waits for ever in setlocale() if it runs with AddressSanitizer's runtime, also without Verbena.
[ -z "${VB_PRELOAD:-}" ] ||
  fetch=(python3 -c 'import sys, urllib.request; urllib.request.urlretrieve(sys.argv[2], sys.argv[1])' "$work/copy")
verbena run --sockets -- "${fetch[@]}" "http://127.0.0.1:20003/file" || fail "${fetch[0]}: exit code $?"
cmp "$work/file" "$work/copy" || fail "${fetch[0]} received wrong bytes"
kill $server
wait $server 2>/dev/null || true

# ---- epoll reports bytes that come by the ring
cat >"$work/echo.py" <<'PY'
import asyncio

async def echo(reader, writer):
    while piece := await reader.read(65536):
        writer.write(piece)
        await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    for i in range(2000):
        sent = bytes([i % 256]) * (i % 7000 + 1)
        writer.write(sent)
        assert await reader.readexactly(len(sent)) == sent, i
    writer.write_eof()
    assert await reader.read() == b""

asyncio.run(main())
PY
run_asyncio() { verbena run --sockets -- timeout 60 python3 "$work/echo.py" || fail "asyncio"; }
until_by_ring 1000000 run_asyncio || fail "asyncio: few bytes by the ring: $(verbena sockets stat)"

# ---- poll() and select() of many connections
cat >"$work/many.py" <<'PY'
import select, socket, sys, threading, time

mode = sys.argv[1]
listener = socket.create_server(("127.0.0.1", 0), backlog=512)
pairs = []
for _ in range(200):
    client = socket.create_connection(listener.getsockname())
    pairs.append((client, listener.accept()[0]))
for i in range(12):
    for client, server in pairs:
        for sender, receiver in ((client, server), (server, client)):
            sender.sendall(b"%d" % i)
            assert receiver.recv(100) == b"%d" % i
    time.sleep(0.002)

def ready(descriptors, poll):
    return [fd for fd, _ in poll.poll()] if mode == "poll" else select.select(descriptors, [], [])[0]

got = {server.fileno(): b"" for _, server in pairs}

def receive():
    unfinished = {server.fileno(): server for _, server in pairs}
    poll = select.poll()
    for fd in unfinished:
        poll.register(fd, select.POLLIN)
    while unfinished:
        for fd in ready(list(unfinished), poll):
            piece = unfinished[fd].recv(37)  # leaves some bytes in the ring
            got[fd] += piece
            if not piece:
                poll.unregister(fd)
                del unfinished[fd]

receiver = threading.Thread(target=receive)
receiver.start()
for _ in range(30):
    for i, (client, _server) in enumerate(pairs):
        client.sendall(b"%05d" % i * 20)
for client, _server in pairs:
    client.shutdown(socket.SHUT_WR)
receiver.join()
for i, (_client, server) in enumerate(pairs):
    assert got[server.fileno()] == b"%05d" % i * 600, i
PY
before=$(service_counter times_back)
for mode in poll select; do
  verbena run --sockets -- timeout 120 python3 "$work/many.py" $mode >"$work/client" 2>&1 || fail "$mode: $(cat "$work/client")"
done
[ "$(service_counter times_back)" -eq "$before" ] || fail "many connections went back to TCP: $(verbena sockets stat)"

# ---- if there are many connections at once, each end is reported once, and all connections get a ring
cat >"$work/burst.py" <<'PY'
import json, socket, subprocess, sys, time
listener = socket.create_server(("127.0.0.1", 0), backlog=512)
pairs = []
for _ in range(400):
    client = socket.create_connection(listener.getsockname())
    pairs.append((client, listener.accept()[0]))

def service():
    output = subprocess.run([sys.argv[1], "sockets", "stat", "--json"], capture_output=True, check=True).stdout
    return json.loads(output)["service"] or {"reports": 0, "pairs_made": 0}

before = now = service()
deadline = time.monotonic() + 120
while now["pairs_made"] - before["pairs_made"] < len(pairs) and time.monotonic() < deadline:
    for client, server in pairs:
        for sender, receiver in ((client, server), (server, client)):
            sender.sendall(b"x")
            assert receiver.recv(100) == b"x"
    now = service()
assert now["pairs_made"] - before["pairs_made"] == len(pairs), (before, now)
assert now["reports"] - before["reports"] == 2 * len(pairs), (before, now)
PY
verbena run --sockets -- timeout 200 python3 "$work/burst.py" "$VB_PREFIX/bin/verbena" >"$work/client" 2>&1 ||
  fail "many connections at once: $(cat "$work/client")"

# ---- the first 16 connections have rings of 8 MiB, and the next connection has rings of 1 MiB
cat >"$work/large.py" <<'PY'
import itertools, json, socket, subprocess, sys, time

MIB = 1 << 20
PAGES = 3 * 4096  # the state of both directions, and of each end
listener = socket.create_server(("127.0.0.1", 0), backlog=64)

def query(what):
    return json.loads(subprocess.run([sys.argv[1], "sockets", what, "--json"], capture_output=True, check=True).stdout)

def pair():
    """Returns both ends of a new connection, of which the first sends by its ring."""
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    deadline = time.monotonic() + 30
    for i in itertools.count():
        if time.monotonic() > deadline:
            raise AssertionError("no ring")
        for sender, receiver in ((client, server), (server, client)):
            sender.sendall(b"x" * 500)
            assert receiver.recv(500, socket.MSG_WAITALL) == b"x" * 500
        if i % 10 == 9 and by_ring(client) > 0:
            return client, server
        time.sleep(0.001)

def by_ring(end):
    name = "%s:%d" % end.getsockname()
    return next((row["out"]["by_ring"] for row in query("ls")["sockets"] if row["local"] == name), 0)

def fill_ring(end):
    """Sends until the ring of an end and TCP's buffer are full.  Returns the number of bytes in the ring."""
    before = by_ring(end)
    end.setblocking(False)
    try:
        while True:
            end.send(b"y" * 65536)
    except BlockingIOError:
        return by_ring(end) - before

first = query("stat")["service"]["memory_bytes"]
assert first == 0, first
pairs = [pair() for _ in range(17)]
assert fill_ring(pairs[0][0]) == 8 * MIB
assert fill_ring(pairs[15][0]) == 8 * MIB
assert fill_ring(pairs[16][0]) == MIB
assert query("stat")["service"]["memory_bytes"] == 16 * (PAGES + 16 * MIB) + PAGES + 2 * MIB
for end in pairs.pop(0):
    end.close()
for _ in range(1000):  # until the service has seen that both ends are closed
    if query("stat")["service"]["pairs"] == 16:
        break
    time.sleep(0.01)
pairs.append(pair())
assert fill_ring(pairs[-1][0]) == 8 * MIB, "a large ring that has become free is not used again"
PY
no_pairs() { [ "$(service_counter pairs)" -eq 0 ]; }
until_true 20 no_pairs || fail "rings of ended programs remain: $(verbena sockets ls)"
verbena run --sockets -- timeout 200 python3 "$work/large.py" "$VB_PREFIX/bin/verbena" >"$work/client" 2>&1 ||
  fail "the sizes of rings: $(cat "$work/client")"

# ---- TCP must not delay bytes (TCP_CORK, MSG_MORE) if later bytes are in the ring: epoll would report unreadable bytes
cat >"$work/cork.py" <<'PY'
import os, select, socket, threading, time

listener = socket.create_server(("127.0.0.1", 0))

def change_over(client, server):
    for i in range(30):
        client.sendall(b"%d" % i)
        assert server.recv(100) == b"%d" % i
        server.sendall(b"%d" % i)
        assert client.recv(100) == b"%d" % i
        time.sleep(0.001)

def pair():
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    change_over(client, server)
    return client, server

(reader_a, writer_a), (reader_b, writer_b) = pair(), pair()
go = threading.Barrier(2)
reader = threading.get_native_id()
epoll_waits = {"x86_64": ("232", "281"), "aarch64": ("22",)}[os.uname().machine]

def until_it_sleeps(thread):
    while True:
        with open(f"/proc/self/task/{thread}/syscall") as file:
            if file.read().split()[0] in epoll_waits:
                return

def write():
    writer_a.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
    assert writer_a.getsockopt(socket.IPPROTO_TCP, socket.TCP_CORK) == 1
    for flags in (0, socket.MSG_MORE):
        go.wait()
        until_it_sleeps(reader)
        writer_a.send(b"head", flags)
        writer_b.send(b"wake up")
        assert writer_b.recv(100) == b"awake"
        writer_a.send(b"body")
        assert writer_b.recv(100) == b"read"
        writer_a.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)

threading.Thread(target=write, daemon=True).start()
poll = select.epoll()
for connection in (reader_a, reader_b):
    connection.setblocking(False)
    poll.register(connection, select.EPOLLIN)
for _ in range(2):
    got = b""
    go.wait()
    poll.poll()
    try:
        got += reader_a.recv(100)  # the head may have arrived already
    except BlockingIOError:
        pass
    while True:
        try:
            assert reader_b.recv(100) == b"wake up"
            break
        except BlockingIOError:
            pass
    reader_b.send(b"awake")
    while len(got) < 8:
        for fd, _events in poll.poll(0):
            assert fd == reader_a.fileno()
            got += reader_a.recv(100)  # must not raise BlockingIOError
    assert got == b"headbody", got
    reader_b.send(b"read")
PY
verbena run --sockets -- timeout 120 python3 "$work/cork.py" >"$work/client" 2>&1 || fail "corked: $(cat "$work/client")"

# ---- sendfile() has the same results as by TCP, also for invalid arguments
before=$(service_counter pairs_made)
cat >"$work/sendfile.py" <<'PY'
import errno, os, socket, tempfile
listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
for sender, receiver in ((client, server), (server, client)):
    sender.sendall(b"x")
    receiver.recv(1)
with tempfile.TemporaryFile() as file:
    file.write(b"0123456789")
    file.flush()
    pipe, end = os.pipe()
    os.write(end, b"0123456789")
    for source, offset, count in ((file.fileno(), -1, 5), (file.fileno(), -1, 0), (pipe, 0, 5), (pipe, None, 5),
                                  (999, 0, 5), (999, None, 5), (file.fileno(), 20, 5), (file.fileno(), 8, 5)):
        try:
            print(offset, count, os.sendfile(client.fileno(), source, offset, count))
        except OSError as error:
            print(offset, count, errno.errorcode[error.errno])
PY
timeout 120 python3 "$work/sendfile.py" >"$work/by_tcp" || fail "sendfile() by TCP: $(cat "$work/by_tcp")"
VERBENA_SOCKETS_EARLY=5000 verbena run --sockets -- timeout 120 python3 "$work/sendfile.py" >"$work/by_ring" ||
  fail "sendfile(): $(cat "$work/by_ring")"
[ "$(service_counter pairs_made)" -gt "$before" ] || fail "the connection of sendfile() has no ring"
diff "$work/by_tcp" "$work/by_ring" || fail "sendfile() differs from TCP"

# ---- a program that filters its system calls (seccomp) must not be killed because of the library's system calls
cat >"$work/sandbox.py" <<'PY'
import ctypes, os, socket, struct, sys, time

def filter_kills(*numbers):
    """Kills the process at its next call of one of these system calls (seccomp(2))."""
    code = struct.pack("<HBBI", 0x20, 0, 0, 0)  # load the number
    for number in numbers:
        code += struct.pack("<HBBI", 0x15, 0, 1, number) + struct.pack("<HBBI", 0x06, 0, 0, 0x80000000)
    code += struct.pack("<HBBI", 0x06, 0, 0, 0x7FFF0000)  # allow
    text = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(text))
    c = ctypes.CDLL(None, use_errno=True)
    assert c.prctl(38, 1, 0, 0, 0) == 0
    assert c.prctl(22, 2, ctypes.c_char_p(program), 0, 0) == 0, ctypes.get_errno()

connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
sendmsg, connect, memfd_create = {"x86_64": (46, 42, 319), "aarch64": (211, 203, 279)}[os.uname().machine]
filter_kills(sendmsg, connect, memfd_create)
for i in range(100):
    connection.sendall(b"%d" % i)
    assert connection.recv(100) == b"%d" % i
    time.sleep(0.001)
PY
cat >"$work/echo_server.py" <<'PY'
import socket
connection, _ = socket.create_server(("127.0.0.1", 20005)).accept()
while piece := connection.recv(100):
    connection.sendall(piece)
PY
serve timeout 60 python3 "$work/echo_server.py"
wait_tcp_listener 20005
verbena run --sockets -- timeout 120 python3 "$work/sandbox.py" 20005 >"$work/client" 2>&1 ||
  fail "a program in a sandbox: exit code $?, $(cat "$work/client")"
wait $server || fail "the server of a program in a sandbox: $(cat "$work/server")"

# ---- a program gets rings if it only queries which filters the kernel supports (libseccomp does so when it is loaded)
cat >"$work/asks.py" <<'PY'
import ctypes, errno, os, socket, sys
c = ctypes.CDLL(None, use_errno=True)
seccomp = {"x86_64": 317, "aarch64": 277}[os.uname().machine]
for call in (c.syscall, seccomp, 1, 1, None), (c.prctl, 22, 2, None, 0, 0):
    assert call[0](*call[1:]) == -1 and ctypes.get_errno() == errno.EFAULT, os.strerror(ctypes.get_errno())
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
connection.sendall(b"hello")
assert connection.recv(100) == b"hello"
PY
before=$(service_counter pairs_made)
# With "only", the first round trip of a connection waits for its ring.
start run --sockets=only -- timeout 60 python3 "$work/echo_server.py" >"$work/server" 2>&1 &
server=$!
wait_tcp_listener 20005
verbena run --sockets=only -- timeout 120 python3 "$work/asks.py" 20005 >"$work/client" 2>&1 ||
  fail "a program that asks for seccomp: $(cat "$work/client")"
wait $server || fail "the server of a program that asks for seccomp: $(cat "$work/server")"
[ "$(service_counter pairs_made)" -gt "$before" ] || fail "a program that asks for seccomp gets no ring"

# ---- after the death of the service, new programs must connect as before, and start another service
service=$(service_counter pid)
kill -KILL "$service"
serve timeout 60 "$stream" serve 20004 8 5
wait_tcp_listener 20004
verbena run --sockets -- timeout 60 "$stream" call 20004 8 6 threads >"$work/client" 2>&1 ||
  fail "after the death of the service: $(cat "$work/client")"
wait $server || fail "the server after the death of the service: $(cat "$work/server")"
[ "$(service_counter pid)" != "$service" ] || fail "the killed service still answers"

[ -z "$(ls -A /dev/shm 2>/dev/null)" ] || fail "files remain in /dev/shm: $(ls -A /dev/shm)"
