#!/bin/bash
# Tests that unread bytes in shared memory are not lost when a socket is used without the library's calls: by a program
# after exec or posix_spawn, by stdio, by splice.  If the next program cannot read these bytes, both ends must get an
# error.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export VERBENA_IDLE=600  # so that one service counts the bytes of all programs
need ss python3
python=$(find_python)

cat >"$work/server.py" <<'PY'
# Echoes until "go", sends 51,200 bytes, and prints the bytes that it receives after that.
import socket
server = socket.create_server(("127.0.0.1", 20010))
while True:
    connection, _ = server.accept()
    while (request := connection.recv(100)) not in (b"", b"go"):
        connection.sendall(request)
    connection.sendall(bytes(range(256)) * 200)
    rest = b""
    try:
        while piece := connection.recv(1000):
            rest += piece
        print("end after", rest, flush=True)
    except OSError as error:
        print(error.strerror, flush=True)
    connection.close()
PY
cat >"$work/client.py" <<'PY'
import ctypes, fcntl, os, select, socket, subprocess, sys, termios

mode = sys.argv[1]
connection = socket.create_connection(("127.0.0.1", 20010))
if mode == "child":
    # A child that runs a program without the connection must not keep the connection on TCP.
    if os.fork() == 0:
        os.execvp("true", ["true"])
    os.wait()
while not os.path.exists(sys.argv[2]):
    connection.sendall(b"hello")
    assert connection.recv(100) == b"hello"
# No thread waits in the kernel while the bytes arrive, so they go by the ring.
connection.sendall(b"go")
expected = bytes(range(256)) * 200
unread = bytearray(4)
while int.from_bytes(unread, sys.byteorder) < len(expected):
    fcntl.ioctl(connection, termios.FIONREAD, unread)
head = ["head", "-c", str(len(expected))]
environment = dict(os.environ)

def read_all(fd):
    return b"".join(iter(lambda: os.read(fd, 65536), b""))

got = b""
if mode == "exec":
    out, into = os.pipe()
    if os.fork() == 0:
        os.dup2(connection.fileno(), 0)
        os.dup2(into, 1)
        os.close(out)
        os.execvp("head", head)
    os.close(into)
    got = read_all(out)
elif mode == "script":
    script = os.path.join(os.path.dirname(sys.argv[0]), "script")
    with open(script, "w") as file:
        file.write("#!/bin/sh\nexec " + " ".join(head) + "\n")
    os.chmod(script, 0o755)
    got = subprocess.run([script], stdin=connection, stdout=subprocess.PIPE).stdout
elif mode == "spawn":
    out, into = os.pipe()
    os.posix_spawn("/usr/bin/head", head, environment, file_actions=[
        (os.POSIX_SPAWN_DUP2, connection.fileno(), 0), (os.POSIX_SPAWN_DUP2, into, 1), (os.POSIX_SPAWN_CLOSE, out)])
    os.close(into)
    got = read_all(out)
elif mode == "number":
    # The next program takes over the connection by a descriptor above 2, reads all bytes, and answers.
    out, into = os.pipe()
    if os.fork() == 0:
        fd = connection.fileno()
        assert fd > 2
        os.set_inheritable(fd, True)
        os.dup2(into, 1)
        os.close(out)
        os.execv(sys.executable, [sys.executable, "-c", f"""
import os
got = b""
while len(got) < {len(expected)}:
    got += os.read({fd}, 65536)
os.write({fd}, b"more")
os.write(1, got)
"""])
    os.close(into)
    got = read_all(out)
elif mode == "foreign":
    del environment["LD_PRELOAD"]
    run = subprocess.run(head, stdin=connection, capture_output=True, env=environment)
    print("got", len(run.stdout), run.stderr.decode().strip())
    sys.exit(run.returncode)
elif mode == "foreign_spawn":
    del environment["LD_PRELOAD"]
    out, into = os.pipe()
    errors, errors_into = os.pipe()
    child = os.posix_spawn("/usr/bin/head", head, environment, file_actions=[
        (os.POSIX_SPAWN_DUP2, connection.fileno(), 0), (os.POSIX_SPAWN_DUP2, into, 1),
        (os.POSIX_SPAWN_DUP2, errors_into, 2)])
    os.close(into)
    os.close(errors_into)
    print("got", len(read_all(out)), read_all(errors).decode().strip())
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
elif mode == "set":
    # The next program inherits an epoll set with the connection, and only waits for the set.
    poll = select.epoll()
    poll.register(connection, select.EPOLLIN)
    out, into = os.pipe()
    if os.fork() == 0:
        os.set_inheritable(connection.fileno(), True)
        os.set_inheritable(poll.fileno(), True)
        os.dup2(into, 1)
        os.close(out)
        os.execv(sys.executable, [sys.executable, "-c", f"""
import select
print(len(select.epoll.fromfd({poll.fileno()}).poll(20)), "event", end="")
"""])
    os.close(into)
    got = read_all(out)
    assert got == b"1 event", got
    sys.exit(0)
elif mode == "child":
    while len(got) < len(expected):
        got += connection.recv(65536)
elif mode == "splice":
    c = ctypes.CDLL(None, use_errno=True)
    out, into = os.pipe()
    while len(got) < len(expected):
        n = c.splice(connection.fileno(), None, into, None, 65536, 0)
        assert n > 0, ctypes.get_errno()
        got += os.read(out, n)
elif mode == "fdopen":
    c = ctypes.CDLL(None)
    c.fdopen.restype = ctypes.c_void_p
    file = c.fdopen(connection.fileno(), b"r+")
    buffer = ctypes.create_string_buffer(len(expected))
    count = c.fread(buffer, 1, len(expected), ctypes.c_void_p(file))
    got = buffer.raw[:count]
assert got == expected, len(got)
if mode in ("splice", "fdopen"):
    connection.sendall(b"more")  # by TCP, which the socket uses from now on
PY

start run --sockets -- "$python" "$work/server.py" >"$work/server" 2>&1 &
server=$!
listens_tcp() { ss -Htln "sport = :20010" | grep -q .; }
until_true 60 listens_tcp || fail "the server does not listen: $(cat "$work/server")"

# Succeeds when both ends of a connection count their bytes in the shared memory.
both_have_the_ring() { verbena sockets ls --json | python3 -c 'import json, sys
sys.exit(not any(all(row[way]["by_ring"] + row[way]["by_tcp"] > 0 for way in ("out", "in"))
                 for row in json.load(sys.stdin)["sockets"]))'; }
no_sockets() { [ "$(verbena sockets ls --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["sockets"])')" = "[]" ]; }
# run_client MODE: runs the client.  The client sends its request after both ends have got the ring.
run_client() {
  rm -f "$work/go"
  until_true 30 no_sockets || fail "$1: a connection remains: $(verbena sockets ls)"
  verbena run --sockets -- timeout 90 "$python" "$work/client.py" "$1" "$work/go" >"$work/client" 2>&1 &
  local client=$!
  until_true 60 both_have_the_ring || fail "$1: the ends do not get a ring: $(verbena sockets ls)"
  touch "$work/go"
  wait $client
}
by_ring() { verbena sockets stat --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["service"]["total"]["by_ring"])'; }
has_lines() { [ "$(wc -l <"$work/server")" -ge "$1" ]; }

line=0
for mode in exec script number spawn child splice fdopen; do
  before=$(by_ring 2>/dev/null || echo 0)
  run_client $mode || fail "$mode: $(cat "$work/client")"
  [ "$(by_ring)" -gt $((before + 50000)) ] || fail "$mode: the bytes did not go by the ring: $(verbena sockets stat)"
  line=$((line + 1))
  until_true 30 has_lines $line || fail "$mode: the server has not seen the end of the stream"
done
[ "$(grep -c "end after b'more'" "$work/server")" -eq 3 ] || fail "after number, splice and fdopen: $(cat "$work/server")"

# A program without the library cannot read the ring.  So the program and its peer must get an error, not fewer bytes.
for mode in foreign foreign_spawn; do
  run_client $mode && fail "$mode: a program without the library has read bytes: $(cat "$work/client")"
  grep -q '^got 0 .*Connection reset by peer' "$work/client" || fail "$mode: the program says: $(cat "$work/client")"
  line=$((line + 1))
  until_true 30 has_lines $line || fail "$mode: the server has not seen the end of the stream"
  tail -1 "$work/server" | grep -q 'Connection reset by peer' || fail "$mode: the server says: $(cat "$work/server")"
done

# The library of a program that inherits an epoll set does not know the set, which cannot report bytes in a ring.  So the
# program and its peer must get an error, and the program must not wait for ever.
run_client set || fail "set: $(cat "$work/client")"
line=$((line + 1))
until_true 30 has_lines $line || fail "set: the server has not seen the end of the stream"
tail -1 "$work/server" | grep -q 'Connection reset by peer' || fail "set: the server says: $(cat "$work/server")"
kill $server
wait $server 2>/dev/null || true
