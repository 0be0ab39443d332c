#!/bin/bash
# `verbena sockets trace` must print how connections change to the ring, and why they go back to TCP.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need python3 ss
export VERBENA_IDLE=60  # so that one service runs during the whole test
python=$(find_python)

start sockets trace >"$work/trace" 2>"$work/trace_errors" &
trace=$!
until_true 10 grep -qs 'waits for a socket service' "$work/trace_errors" || fail "a trace without service: $(cat "$work/trace_errors")"

trace_has() { grep -q -- "$1" "$work/trace"; }
expect() { until_true 20 trace_has "$1" || fail "the trace has no '$1': $(cat "$work/trace" "$work/out"*)"; }
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }

# Both ends exchange messages of 50 bytes until the file "enough" exists.  The third argument says what the client does
# after that.  The client prints how many bytes each end has sent.
cat >"$work/peer.py" <<'PY'
import os, socket, subprocess, sys, time

port, role, what, enough = int(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4]
if role == "serve":
    connection, _ = socket.create_server(("127.0.0.1", port)).accept()
else:
    connection = socket.create_connection(("127.0.0.1", port))
def receive(count):
    """Receives without sleeping in recv(), because a receiver that sleeps gets its bytes by TCP."""
    data = b""
    while len(data) < count:
        try:
            part = connection.recv(count - len(data), socket.MSG_DONTWAIT)
        except BlockingIOError:
            time.sleep(0.0002)
            continue
        assert part, "the connection has ended"
        data += part
    return data

rounds, last = 0, False
while not last:
    if role == "call":
        last = os.path.exists(enough)
        message = b"%49d%c" % (rounds, b"." if last else b",")
        connection.sendall(message)
        assert receive(50) == message
    else:
        message = receive(50)
        last = message.endswith(b".")
        connection.sendall(message)
    rounds += 1
    time.sleep(0.0005)
if role == "serve":
    connection.recv(100)
    sys.exit()
print("each end has sent", rounds * 50, flush=True)
if what == "urgent":
    connection.send(b"!", socket.MSG_OOB)
    time.sleep(0.1)
elif what == "exec":
    os.set_inheritable(connection.fileno(), True)
    subprocess.run(["/bin/true"], pass_fds=[connection.fileno()], check=True)
elif what == "hold":
    sys.stdin.readline()
PY
# start_server PORT WHAT: starts a server with Verbena, and sets "server".
start_server() {
  rm -f "$work/enough"
  start run --sockets -- "$python" "$work/peer.py" "$1" serve "$2" "$work/enough" >"$work/out_server" 2>&1 &
  server=$!
  until_true 60 listens_tcp "$1" || fail "no server: $(cat "$work/out_server")"
}
# start_client PORT WHAT: starts a client with Verbena, and sets "client"; waits until both ends send by the ring.
start_client() {
  start run --sockets -- "$python" "$work/peer.py" "$1" call "$2" "$work/enough" <"$work/in" >"$work/out_client" 2>&1 &
  client=$!
  exec {to}>"$work/in"
  expect "127.0.0.1:$1 > .* sends by the ring, from"
  expect "> 127.0.0.1:$1 sends by the ring, from"
  touch "$work/enough"
}
# run_pair PORT WHAT: runs both ends of a connection until both have ended.
run_pair() {
  start_server "$@"
  start_client "$@"
  wait $client && wait $server || fail "$2: $(cat "$work/out_client" "$work/out_server")"
  exec {to}>&-
}

# The first program starts the service.  The trace connects to the service a moment later, and shows all connections that
# begin after that.
mkfifo "$work/in"
start run --sockets -- cat <"$work/in" >"$work/out_first" 2>&1 &
first=$!
exec {to}>"$work/in"
until_true 20 grep -q '^connected to a socket service$' "$work/trace_errors" ||
  fail "the trace does not connect to the service: $(cat "$work/trace_errors" "$work/out_first")"
exec {to}>&-
wait $first

# ---- both ends change to the ring, and then back to TCP because of urgent data
run_pair 20001 urgent
server_end="[^ ]* [0-9]* 127.0.0.1:20001 > 127.0.0.1:[0-9]*" client_end="[^ ]* [0-9]* 127.0.0.1:[0-9]* > 127.0.0.1:20001"
for end in "$server_end" "$client_end"; do
  expect "^[0-9:.]* $end is offered to the socket service$"
  expect "$end is introduced to python3[.0-9]* (pid [0-9]*)$"
  expect "$end has changed over: it may send by the ring$"
  expect "$end sends by the ring, from byte [0-9]*00* on$"
  expect "$end is closed; it has sent [0-9]* bytes by the ring and [0-9]* by TCP (woke the peer"
done
expect "$client_end sends by TCP only, from byte [0-9]* on: urgent data$"

# The trace must have the events in the order in which they happened.
order=$(grep "127.0.0.1:[0-9]* > 127.0.0.1:20001" "$work/trace" | grep -o 'offered\|introduced\|changed over\|by the ring, from\|TCP only, from\|closed' | tr '\n' ' ')
[ "$order" = "offered introduced changed over by the ring, from TCP only, from closed " ] || fail "the order is: $order"

# ---- a program without the library inherits the descriptor
run_pair 20002 exec
expect "[^ ]* [0-9]* 127.0.0.1:[0-9]* > 127.0.0.1:20002 sends by TCP only, from byte [0-9]* on: another program inherits the descriptor"

# ---- a peer without Verbena
start_server 20003 alone
"$python" "$work/peer.py" 20003 call hold "$work/enough" <"$work/in" >"$work/out_client" 2>&1 &
client=$!
exec {to}>"$work/in"
expect "127.0.0.1:20003 > 127.0.0.1:[0-9]* waits for its peer"
touch "$work/enough"
send_newline "$to"
exec {to}>&-
wait $client && wait $server || fail "a peer without Verbena: $(cat "$work/out_client" "$work/out_server")"
expect "127.0.0.1:20003 > 127.0.0.1:[0-9]* is closed; it never had a ring"

# ---- a trace of one process, which starts after the connection uses the ring, as JSON
start_server 20004 hold
start_client 20004 hold
until_true 10 grep -q '^each end has sent' "$work/out_client" || fail "no end of the messages: $(cat "$work/out_client")"
sent=$(sed -n 's/^each end has sent //p' "$work/out_client")
start sockets trace --json $client >"$work/json" 2>/dev/null &
late_trace=$!
start sockets trace --json 1 >"$work/nothing" 2>/dev/null &
other_trace=$!
until_true 10 grep -q '"ring"' "$work/json" || fail "a late trace: $(cat "$work/json")"
send_newline "$to"
exec {to}>&-
wait $client && wait $server || fail "traced programs: $(cat "$work/out_client" "$work/out_server")"
until_true 10 grep -q '"closed"' "$work/json" || fail "a late trace: $(cat "$work/json")"
python3 - "$work/json" "$sent" $client $server <<'PY' || fail "a late trace: $(cat "$work/json")"
import json, sys
events = [json.loads(line) for line in open(sys.argv[1])]
sent, pids = int(sys.argv[2]), {int(pid) for pid in sys.argv[3:]}
assert all({event["pid"], event["peer_pid"]} <= pids | {0} for event in events), "another process"
ring = next(event for event in events if event["event"] == "ring" and event["peer"].endswith(":20004"))
assert ring["earlier"] and 0 < ring["byte"] < sent, ring
closed = next(event for event in events if event["event"] == "closed" and event["peer"].endswith(":20004"))
assert not closed["earlier"] and closed["sent"]["by_ring"] > 0, closed
assert closed["sent"]["by_ring"] + closed["sent"]["by_tcp"] == sent, closed
assert closed["sent"]["by_tcp"] >= ring["byte"], (closed, ring)
PY
[ ! -s "$work/nothing" ] || fail "a trace of another process: $(cat "$work/nothing")"

# ---- a trace ends if its reader closes the pipe, and by a signal
mkfifo "$work/unread"
start sockets trace >"$work/unread" 2>/dev/null &
unread_trace=$!
exec {from}<"$work/unread"
exec {from}<&-
until_true 10 gone $unread_trace || fail "a trace does not end although its reader has closed the pipe"
kill $trace $late_trace $other_trace
wait $trace $late_trace $other_trace $unread_trace 2>/dev/null || true

# ---- a trace waits for the next service if its service ends, and keeps no service alive
start sockets trace >"$work/trace" 2>"$work/trace_errors" &
trace=$!
until_true 10 verbena sockets ls >/dev/null
kill -KILL "$(verbena sockets stat --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["service"]["pid"])')"
until_true 10 grep -qs 'waits for a socket service' "$work/trace_errors" || fail "after the death of the service: $(cat "$work/trace_errors")"
mkfifo "$work/in2"
VERBENA_IDLE=10 start run --sockets -- cat <"$work/in2" >"$work/out_client" 2>&1 &
client=$!
exec {to}>"$work/in2"
is_served() { verbena sockets stat --json | grep -q '"pid": [1-9]'; }
until_true 60 is_served || fail "no service starts"
send_newline "$to"
exec {to}>&-
wait $client
# A tool that connects to the service would keep it alive, so this function looks for the process of the service.
no_service() {
  local process
  for process in /proc/[0-9]*; do
    case $(readlink "$process/exe" 2>/dev/null) in *verbena-sockets) return 1 ;; esac
  done
}
until_true 60 no_service || fail "a trace keeps the service alive"
kill $trace
wait $trace 2>/dev/null || true
