#!/bin/bash
# Rules in libsdp.conf's language say which TCP connections may or must use shared memory (the ring).  If a connection
# must use the ring but cannot, it must fail, and a message must give the reason.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export VERBENA_IDLE=600  # so that one service counts the bytes of all programs
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
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }
serve() {  # serve PORT OPTION...
  local port=$1
  shift
  start run "$@" -- python3 "$work/echo.py" "$port" >"$work/server.$port" 2>&1 &
  until_true 60 listens_tcp "$port" || fail "nothing listens on port $port: $(cat "$work/server.$port")"
}
call() {  # call PORT COUNT OPTION...
  local port=$1 count=$2
  shift 2
  verbena run "$@" -- timeout 120 python3 "$work/call.py" "$port" "$count" >"$work/client" 2>&1
}
service_counter() { verbena sockets stat --json | python3 -c '
import json, sys
service = json.load(sys.stdin)["service"] or {"total": {}}
print(service["total"].get(sys.argv[1], service.get(sys.argv[1], 0)))' "$1"; }

# ---- if rules are wrong or cannot be read, an error names the file, line and reason, and the program does not run
printf 'use tcp client * *:1\nuse udp client * *:1\n' >"$work/wrong"
verbena run --sockets --socket-rules "$work/wrong" -- true 2>"$work/output" && fail "wrong rules are no error"
grep -qF "verbena run: $work/wrong:2: 'udp' is not one of sdp, tcp and both" "$work/output" || fail "run says: $(cat "$work/output")"
LIBSDP_CONFIG_FILE=$work/none verbena run --sockets -- true 2>"$work/output" && fail "a missing file is no error"
grep -qF "cannot read '$work/none': No such file" "$work/output" || fail "run says: $(cat "$work/output")"
VERBENA_SOCKET_RULES='use both client' verbena run --sockets -- true 2>"$work/output" && fail "a wrong variable is no error"
grep -qF "verbena run: VERBENA_SOCKET_RULES:1: a rule is" "$work/output" || fail "run says: $(cat "$work/output")"

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
        pass  # the check below fails if nobody reads the second line
PY
verbena run --sockets --socket-rules "$work/pipe" -- true 2>"$work/output" && fail "the second piece is not read"
grep -qF "verbena run: $work/pipe:2: 'udp' is not one of" "$work/output" || fail "run says: $(cat "$work/output")"
wait $!

# ---- rule tcp: the client does not report its connection to the service
serve 20021 --sockets
# The client exchanges messages until its connection has a ring.
start run --sockets -- timeout 120 python3 "$work/call.py" 20021 30000 >"$work/client" 2>&1 &
client=$!
has_pair() { [ "$(service_counter pairs_made)" -gt 0 ]; }
until_true 30 has_pair || fail "without rules there is no ring: $(cat "$work/client")"
kill $client
wait $client || true
made=$(service_counter pairs_made)
echo 'use tcp connect python3* 127.0.0.0/8:20000-20100' >"$work/rules"
reports=$(service_counter reports)
LIBSDP_CONFIG_FILE=$work/rules call 20021 20 --sockets || fail "rule tcp: $(cat "$work/client")"
[ "$(service_counter pairs_made)" -eq "$made" ] || fail "rule tcp: a connection has got a ring"
[ "$(service_counter reports)" -le $((reports + 1)) ] || fail "rule tcp: the client's end was reported"

# ---- only: the first byte of a connection waits for the ring, so that even a single round trip goes by the ring
serve 20022 --sockets=only
made=$(service_counter pairs_made)
call 20022 1 --sockets=only || fail "only: $(cat "$work/client")"
[ "$(service_counter pairs_made)" -eq $((made + 1)) ] || fail "only: no ring for one round trip"
# A receiver that never sleeps gets its bytes by the ring, also on a busy machine.  The first bytes in each direction
# may go by TCP, because they arrive before the receiver has read from the ring.
cat >"$work/both_ends.py" <<'PY'
import socket
listener = socket.create_server(("127.0.0.1", 0))
ends = socket.create_connection(listener.getsockname()), listener.accept()[0]
for i in range(20):
    ends[i % 2].sendall(b"%1000d" % i)
    assert ends[1 - i % 2].recv(1001) == b"%1000d" % i
PY
ring=$(service_counter by_ring)
verbena run --sockets=only -- python3 "$work/both_ends.py" || fail "only: both ends in one program"
[ "$(service_counter by_ring)" -ge $((ring + 18000)) ] || fail "only: $(($(service_counter by_ring) - ring)) of 20,000 bytes by the ring"

# ---- only: if a child waits in poll() for a connection of its parent, the peer must still be able to send
cat >"$work/forks.py" <<'PY'
import os, select, socket, sys
server = socket.create_server(("127.0.0.1", 20025))
socket.create_connection(server.getsockname()).close()  # makes the parent connect to the service
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
until_true 60 listens_tcp 20025 || fail "nothing listens on port 20025: $(cat "$work/server.20025")"
# The client offers its connection to the service only after the parent has closed its end.
# shellcheck disable=SC2016
LATE_CONNECT=$work/forked verbena run --sockets=only -- sh -c \
  'LD_PRELOAD="$LD_PRELOAD $1" exec timeout 120 python3 "$2" 20025 1' late "$VB_PREFIX/tests/programs/late_connect.so" \
  "$work/call.py" >"$work/client" 2>&1 || fail "only, fork: $(cat "$work/client")"
wait $server || fail "only, fork: the server: $(cat "$work/server.20025")"

# ---- only: threads that accept at the same moment must offer all their connections before they wait in poll()
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
threads = [threading.Thread(target=function, daemon=True) for function in 8 * [serve, call]]
for thread in threads: thread.start()
while not errors and any(thread.is_alive() for thread in threads):
    for thread in threads: thread.join(0.05)
sys.exit(str(errors) if errors else 0)
PY
verbena run --sockets=only -- timeout 60 python3 "$work/threads.py" >"$work/client" 2>&1 ||
  fail "only, threads: $(tail -n 3 "$work/client")"

# ---- only: a listener must accept connections although it makes the kernel wait for the first bytes
cat >"$work/defers.py" <<'PY'
import socket
server = socket.create_server(("127.0.0.1", 20026))
server.setsockopt(socket.IPPROTO_TCP, socket.TCP_DEFER_ACCEPT, 60)
connection, _ = server.accept()
connection.sendall(connection.recv(100))
PY
start run --sockets=only -- timeout 60 python3 "$work/defers.py" >"$work/server.20026" 2>&1 &
server=$!
until_true 60 listens_tcp 20026 || fail "nothing listens on port 20026: $(cat "$work/server.20026")"
call 20026 1 --sockets=only || fail "only, TCP_DEFER_ACCEPT: $(cat "$work/client")"
wait $server || fail "only, TCP_DEFER_ACCEPT: the server: $(cat "$work/server.20026")"

# ---- only: a program with the library may inherit the connection, and use it
cat >"$work/inherits.py" <<'PY'
import os, socket, subprocess
connection = socket.create_connection(("127.0.0.1", 20022))
def round_trip(text):
    connection.sendall(text)
    assert connection.recv(100) == text
round_trip(b"before")
subprocess.run(["true"], pass_fds=[connection.fileno()], check=True)
round_trip(b"between")
subprocess.run(["python3", "-c", f"import os; os.write({connection.fileno()}, b'more')"], pass_fds=[connection.fileno()],
               check=True)
assert connection.recv(100) == b"more"
round_trip(b"after")
PY
verbena run --sockets=only -- timeout 120 python3 "$work/inherits.py" >"$work/client" 2>&1 ||
  fail "only: another program inherits the connection: $(cat "$work/client")"

# ---- only: a peer may end its direction right after its first bytes, before the other end has got the ring
cat >"$work/ends.py" <<'PY'
import socket, sys, threading
errors, address = [], ("127.0.0.1", int(sys.argv[2]))
def run_all(use, connections):
    def run(connection):
        try:
            use(connection)
        except OSError as error:
            errors.append(error)
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
server = socket.create_server(address, backlog=64) if sys.argv[1] == "serve" else None
for _ in range(20):
    if server:
        run_all(serve, (server.accept()[0] for _ in range(32)))
    else:
        run_all(call, [socket.create_connection(address) for _ in range(32)])
assert not errors, errors
PY
start run --sockets=only -- timeout 60 python3 "$work/ends.py" serve 20028 >"$work/server.20028" 2>&1 &
server=$!
until_true 60 listens_tcp 20028 || fail "nothing listens on port 20028: $(cat "$work/server.20028")"
verbena run --sockets=only -- timeout 60 python3 "$work/ends.py" call 20028 >"$work/client" 2>&1 ||
  fail "only: the peer ends after its first bytes: $(cat "$work/client")"
wait $server || fail "only: the peer ends after its first bytes, the server: $(cat "$work/server.20028")"

# ---- only: a connection with a peer without Verbena is reset at both ends
timeout 30 python3 "$work/call.py" 20022 1 >"$work/client" 2>&1 && fail "a client without Verbena has got an answer"
grep -q 'Connection reset by peer' "$work/client" || fail "a client without Verbena says: $(cat "$work/client")"
until_true 10 grep -q "^verbena: python3.* (pid .*): the connection from port 20022 to port .* is reset, .*its peer does not use Verbena's sockets" \
  "$work/server.20022" || fail "the server says: $(cat "$work/server.20022")"
until_true 10 grep -q '^Connection reset by peer$' "$work/server.20022" || fail "the server says: $(cat "$work/server.20022")"

# ---- rules have priority over the mode of --sockets, and a rule may require the ring
printf 'use both server * *:20023\nuse both client * *:20023\n' >"$work/rules"
serve 20023 --sockets=only --socket-rules "$work/rules"
timeout 120 python3 "$work/call.py" 20023 1 || fail "rule both: a client without Verbena gets nothing"
echo 'use sdp client * *:20023' >"$work/rules"
call 20023 1 --sockets --socket-rules "$work/rules" && fail "rule sdp: one round trip works with a server that offers its end later"
grep -q "from port .* to port 20023 is reset" "$work/client" || fail "rule sdp says: $(cat "$work/client")"

# ---- only: a use of the descriptor that needs TCP, such as a copy as standard input, is refused
cat >"$work/stdio.py" <<'PY'
import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
os.dup2(connection.fileno(), 0)  # as for inetd's programs
try:
    connection.sendall(b"x")
except OSError as error:
    sys.exit(error.strerror)
PY
verbena run --sockets=only -- timeout 20 python3 "$work/stdio.py" 20022 >"$work/client" 2>&1 && fail "only: a connection works as standard input"
grep -q 'cannot use the ring' "$work/client" || fail "only: a standard descriptor: $(cat "$work/client")"
grep -q '^Connection reset by peer$' "$work/client" || fail "only: a standard descriptor: $(cat "$work/client")"
