#!/bin/bash
# ctest: TIMEOUT 120 PLAIN
# Rules in libsdp.conf's language say which TCP connections may or must go through shared memory.  A connection that
# must use it and cannot fails with an error that gives the reason.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need ss python3

cat >"$work/echo.py" <<'PY'
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    connection, _ = server.accept()
    try:
        while piece := connection.recv(1000):
            connection.sendall(piece)
    except OSError as error:
        print(error.strerror, flush=True)
    connection.close()
PY
cat >"$work/call.py" <<'PY'
import socket, sys, time
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for i in range(int(sys.argv[2])):
    connection.sendall(b"%d" % i)
    assert connection.recv(100) == b"%d" % i
    time.sleep(0.001)
PY
open_port() { ss -Htln "sport = :$1" | grep -q .; }
serve() {  # serve PORT OPTION...
  local port=$1
  shift
  start run "$@" -- timeout 100 python3 "$work/echo.py" "$port" >"$work/server.$port" 2>&1 &
  until_true 20 open_port "$port" || fail "nothing listens on port $port: $(cat "$work/server.$port")"
}
call() {  # call PORT COUNT OPTION...
  local port=$1 count=$2
  shift 2
  verbena run "$@" -- timeout 30 python3 "$work/call.py" "$port" "$count" >"$work/client" 2>&1
}
total() { verbena sockets stat --json | python3 -c '
import json, sys
service = json.load(sys.stdin)["service"] or {"total": {}}
print(service["total"].get(sys.argv[1], service.get(sys.argv[1], 0)))' "$1"; }

# ---- rules that cannot be read name file, line and reason, before the program runs
printf 'use tcp client * *:1\nuse udp client * *:1\n' >"$work/wrong"
verbena run --sockets --socket-rules "$work/wrong" -- true 2>"$work/said" && fail "wrong rules are no error"
grep -qF "verbena run: $work/wrong:2: 'udp' is none of sdp, tcp and both" "$work/said" || fail "said: $(cat "$work/said")"
LIBSDP_CONFIG_FILE=$work/none verbena run --sockets -- true 2>"$work/said" && fail "a missing file is no error"
grep -qF "cannot read '$work/none': No such file" "$work/said" || fail "said: $(cat "$work/said")"
VERBENA_SOCKET_RULES='use both client' verbena run --sockets -- true 2>"$work/said" && fail "wrong variable is no error"
grep -qF "verbena run: VERBENA_SOCKET_RULES:1: a rule is" "$work/said" || fail "said: $(cat "$work/said")"

# Rules may come through a pipe, in pieces.
mkfifo "$work/pipe"
python3 - "$work/pipe" <<'PY' &
import fcntl, struct, sys, termios, time
with open(sys.argv[1], "wb", buffering=0) as pipe:
    pipe.write(b"use tcp client * *:1\n")
    deadline = time.monotonic() + 20
    while struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0] > 0:
        assert time.monotonic() < deadline, "nobody reads the pipe"
    try:
        pipe.write(b"use udp client * *:1\n")
    except BrokenPipeError:
        pass  # the test shows that the second line was not read
PY
verbena run --sockets --socket-rules "$work/pipe" -- true 2>"$work/said" && fail "the second piece is not read"
grep -qF "verbena run: $work/pipe:2: 'udp' is none of" "$work/said" || fail "said: $(cat "$work/said")"
wait $!

# ---- tcp: the connection is not even reported
serve 20021 --sockets
# The connection lives until it has a ring.
start run --sockets -- timeout 30 python3 "$work/call.py" 20021 30000 >"$work/client" 2>&1 &
client=$!
has_pair() { [ "$(total pairs_made)" -gt 0 ]; }
until_true 30 has_pair || fail "without rules there is no ring: $(cat "$work/client")"
kill $client
wait $client || true
made=$(total pairs_made)
echo 'use tcp connect python3* 127.0.0.0/8:20000-20100' >"$work/rules"
reports=$(total reports)
LIBSDP_CONFIG_FILE=$work/rules call 20021 20 --sockets || fail "rule tcp: $(cat "$work/client")"
[ "$(total pairs_made)" -eq "$made" ] || fail "rule tcp: there was a ring"
[ "$(total reports)" -le $((reports + 1)) ] || fail "rule tcp: the client's end was reported"

# ---- only: the first byte of a connection already waits for the ring, so that even one round trip has it
serve 20022 --sockets=only
made=$(total pairs_made)
call 20022 1 --sockets=only || fail "only: $(cat "$work/client")"
[ "$(total pairs_made)" -eq $((made + 1)) ] || fail "only: no ring for one round trip"
# A receiver that never sleeps gets its bytes by the ring, also on a busy machine.  The first ones each way may come
# before it has looked at the ring.
cat >"$work/alone.py" <<'PY'
import socket
listener = socket.create_server(("127.0.0.1", 0))
ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
for i in range(20):
    ends[i % 2].sendall(b"%1000d" % i)
    assert ends[1 - i % 2].recv(1001) == b"%1000d" % i
PY
ring=$(total by_ring)
verbena run --sockets=only -- python3 "$work/alone.py" || fail "only: both ends in one program"
[ "$(total by_ring)" -ge $((ring + 18000)) ] || fail "only: $(($(total by_ring) - ring)) of 20,000 bytes by the ring"

# ---- only: a child that waits in poll() for a connection of its parent's lets the peer begin
cat >"$work/forks.py" <<'PY'
import os, select, socket, sys
server = socket.create_server(("127.0.0.1", 20025))
socket.create_connection(server.getsockname()).close()  # the parent is known to the service from now on
server.accept()[0].close()
connection, _ = server.accept()
if os.fork() == 0:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    poll.poll()
    connection.sendall(connection.recv(100))
    os._exit(0)
connection.close()
open(sys.argv[1], "w").close()
os.wait()
PY
start run --sockets=only -- timeout 60 python3 "$work/forks.py" "$work/forked" >"$work/server.20025" 2>&1 &
server=$!
until_true 20 open_port 20025 || fail "nothing listens on port 20025: $(cat "$work/server.20025")"
# The client offers its connection when the parent has closed it.  Before that nobody else knows of it.
# shellcheck disable=SC2016
LATE_CONNECT=$work/forked verbena run --sockets=only -- sh -c \
  'LD_PRELOAD="$LD_PRELOAD $1" exec timeout 30 python3 "$2" 20025 1' late "$VB_PREFIX/tests/programs/late_connect.so" \
  "$work/call.py" >"$work/client" 2>&1 || fail "only, fork: $(cat "$work/client")"
wait $server || fail "only, fork: the server: $(cat "$work/server.20025")"

# ---- only: threads that accept at the same moment offer all of their connections, before they wait in poll()
cat >"$work/threads.py" <<'PY'
import select, socket, sys, threading
server = socket.create_server(("127.0.0.1", 0), backlog=100)
errors = []
def serve():
    for _ in range(20):
        connection, _ = server.accept()
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        poll.poll()
        connection.sendall(connection.recv(100))
        connection.close()
def call():
    for i in range(20):
        with socket.create_connection(server.getsockname()) as connection:
            connection.sendall(b"hello")
            if connection.recv(100) != b"hello": errors.append(i)
def report(failed):
    errors.append(failed.exc_value)
threading.excepthook = report
threads = [threading.Thread(target=one, daemon=True) for one in 8 * [serve, call]]
for one in threads: one.start()
while not errors and any(one.is_alive() for one in threads):
    for one in threads: one.join(0.05)
sys.exit(str(errors) if errors else 0)
PY
verbena run --sockets=only -- timeout 60 python3 "$work/threads.py" >"$work/client" 2>&1 ||
  fail "only, threads: $(tail -n 3 "$work/client")"

# ---- only: a listener that asks the kernel to wait for the first bytes accepts connections
cat >"$work/defers.py" <<'PY'
import socket
server = socket.create_server(("127.0.0.1", 20026))
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 60)
connection, _ = server.accept()
connection.sendall(connection.recv(100))
PY
start run --sockets=only -- timeout 60 python3 "$work/defers.py" >"$work/server.20026" 2>&1 &
server=$!
until_true 20 open_port 20026 || fail "nothing listens on port 20026: $(cat "$work/server.20026")"
call 20026 1 --sockets=only || fail "only, TCP_DEFER_ACCEPT: $(cat "$work/client")"
wait $server || fail "only, TCP_DEFER_ACCEPT: the server: $(cat "$work/server.20026")"

# ---- only: a program with the library may inherit the connection, and use it
cat >"$work/inherits.py" <<'PY'
import os, socket, subprocess
connection = socket.create_connection(("127.0.0.1", 20022))
def round_trip(said):
    connection.sendall(said)
    assert connection.recv(100) == said
round_trip(b"before")
subprocess.run(["true"], pass_fds=[connection.fileno()], check=True)
round_trip(b"between")
subprocess.run(["python3", "-c", f"import os; os.write({connection.fileno()}, b'more')"], pass_fds=[connection.fileno()],
               check=True)
assert connection.recv(100) == b"more"
round_trip(b"after")
PY
verbena run --sockets=only -- timeout 30 python3 "$work/inherits.py" >"$work/client" 2>&1 ||
  fail "only: another program inherits the connection: $(cat "$work/client")"

# ---- only: a peer may end its direction right after its first bytes, before the other end has heard of the ring
cat >"$work/ends.py" <<'PY'
import socket, sys, threading
faults, at = [], ("127.0.0.1", int(sys.argv[2]))
def run_all(use, connections):
    def run(connection):
        try:
            use(connection)
        except OSError as error:
            faults.append(error)
        connection.close()
    threads = []
    for connection in connections:
        threads.append(threading.Thread(target=run, args=[connection]))
        threads[-1].start()
    for thread in threads:
        thread.join()
def serve(connection):
    while connection.recv(100):
        pass
def call(connection):
    connection.sendall(b"hello")
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(100) == b""
server = socket.create_server(at, backlog=64) if sys.argv[1] == "serve" else None
for _ in range(20):
    if server:
        run_all(serve, (server.accept()[0] for _ in range(32)))
    else:
        run_all(call, [socket.create_connection(at) for _ in range(32)])
assert not faults, faults
PY
start run --sockets=only -- timeout 60 python3 "$work/ends.py" serve 20028 >"$work/server.20028" 2>&1 &
server=$!
until_true 20 open_port 20028 || fail "nothing listens on port 20028: $(cat "$work/server.20028")"
verbena run --sockets=only -- timeout 60 python3 "$work/ends.py" call 20028 >"$work/client" 2>&1 ||
  fail "only: the peer ends after its first bytes: $(cat "$work/client")"
wait $server || fail "only: the peer ends after its first bytes, the server: $(cat "$work/server.20028")"

# ---- only: a peer without Verbena ends in an error at both ends
timeout 30 python3 "$work/call.py" 20022 1 >"$work/client" 2>&1 && fail "a client without Verbena has got an answer"
grep -q 'Connection reset by peer' "$work/client" || fail "a client without Verbena says: $(cat "$work/client")"
grep -q "^verbena: python3.* (pid .*): the connection from port 20022 to port .* is reset, .*its peer takes no part" \
  "$work/server.20022" || fail "the server says: $(cat "$work/server.20022")"
grep -q '^Connection reset by peer$' "$work/server.20022" || fail "the server says: $(cat "$work/server.20022")"

# ---- rules decide before the mode does, and a rule may ask for the ring by itself
printf 'use both server * *:20023\nuse both client * *:20023\n' >"$work/rules"
serve 20023 --sockets=only --socket-rules "$work/rules"
timeout 30 python3 "$work/call.py" 20023 1 || fail "rule both: a client without Verbena gets nothing"
echo 'use sdp client * *:20023' >"$work/rules"
call 20023 1 --sockets --socket-rules "$work/rules" && fail "rule sdp: one round trip with a server that offers later"
grep -q "from port .* to port 20023 is reset" "$work/client" || fail "rule sdp says: $(cat "$work/client")"

# ---- only: something that needs the descriptor on TCP is refused
cat >"$work/stdio.py" <<'PY'
import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
os.dup2(connection.fileno(), 0)  # as for inetd's programs
try:
    connection.sendall(b"x")
except OSError as error:
    sys.exit(error.strerror)
PY
verbena run --sockets=only -- timeout 20 python3 "$work/stdio.py" 20022 >"$work/client" 2>&1 && fail "only: a standard descriptor is used"
grep -q 'does not know the ring' "$work/client" || fail "only: a standard descriptor: $(cat "$work/client")"
grep -q '^Connection reset by peer$' "$work/client" || fail "only: a standard descriptor: $(cat "$work/client")"
