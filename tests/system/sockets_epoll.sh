#!/bin/bash
# Tests that epoll reports bytes in shared memory: with one-shot, exclusive and edge-triggered entries, together with
# output, for a set within a set or in poll(), when an entry is added or armed again while threads sleep in
# epoll_wait(), and when the set is closed.  epoll must report connections in the order in which their bytes were sent,
# and must not omit a connection.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export VERBENA_IDLE=600  # so that one service counts the bytes of all programs
need python3
# Each connection waits for its ring in its first call, so that the cases below know which connections have a ring.
export VERBENA_SOCKETS_EARLY=2000

cat >"$work/modes.py" <<'PY'
import ctypes, os, select, socket, subprocess, sys, threading, time

mode = sys.argv[1]
listener = socket.create_server(("127.0.0.1", 0))

def pair():
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    for i in range(30):
        for sender, receiver in ((client, server), (server, client)):
            sender.sendall(b"%d" % i)
            assert receiver.recv(100) == b"%d" % i
        time.sleep(0.001)
    return client, server

class Peer:
    """Sends bytes from another program, without the library."""
    PROGRAM = """import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
while piece := os.read(0, 100):
    connection.sendall(piece)
"""
    def __init__(self, port):
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
        self.program = subprocess.Popen([sys.executable, "-c", self.PROGRAM, str(port)], env=environment,
                                        stdin=subprocess.PIPE)
    def sendall(self, text):
        os.write(self.program.stdin.fileno(), text)

epoll_waits = {"x86_64": ("232", "281", "7", "23", "270", "271"), "aarch64": ("22", "72", "73")}[os.uname().machine]

def until_it_sleeps(thread):
    while True:
        with open(f"/proc/self/task/{thread}/syscall") as file:
            if file.read().split()[0] in epoll_waits:
                return

class Waiter(threading.Thread):
    """Waits for events of an epoll set once, in a thread."""
    def __init__(self, poll):
        super().__init__(daemon=True)
        self.poll, self.events = poll, None
        self.start()
        until_it_sleeps(self.native_id)
    def run(self):
        self.events = self.poll.poll(10)
    def got(self):
        self.join(15)
        return self.events

if mode == "oneshot":
    # Workers share the connections of one set.  The worker that has served a connection arms its entry again.
    pairs = [pair() for _ in range(8)]
    by_fd = {server.fileno(): server for _, server in pairs}
    being_served = {fd: threading.Lock() for fd in by_fd}
    poll = select.epoll()
    flags = select.EPOLLIN | select.EPOLLONESHOT
    for fd, server in by_fd.items():
        server.setblocking(False)
        poll.register(fd, flags)
    stop = threading.Event()
    problems = []
    def work():
        while not stop.is_set():
            for fd, _ in poll.poll(1, maxevents=2):
                if not being_served[fd].acquire(blocking=False):
                    problems.append("two workers have the same connection")
                    stop.set()
                    return
                try:
                    by_fd[fd].sendall(by_fd[fd].recv(100))
                except BlockingIOError:
                    pass
                being_served[fd].release()
                poll.modify(fd, flags)
    workers = [threading.Thread(target=work) for _ in range(3)]
    for one in workers:
        one.start()
    for i in range(400):
        for client, _ in pairs:
            client.sendall(b"%d" % i)
        for client, _ in pairs:
            got = b""
            while len(got) < len(b"%d" % i):
                got += client.recv(100)
            assert got == b"%d" % i, (got, i)
    stop.set()
    for one in workers:
        one.join()
    assert not problems, problems
elif mode == "arm":
    # While bytes lie in the ring and a thread sleeps in epoll_wait(), a one-shot entry is armed, an edge-triggered
    # entry is modified, or an entry is added.
    client, server = pair()
    _other, idle = pair()
    poll = select.epoll()
    poll.register(idle, select.EPOLLIN)
    poll.register(server, select.EPOLLIN | select.EPOLLONESHOT)
    client.sendall(b"one")
    assert (events := poll.poll(5)) == [(server.fileno(), select.EPOLLIN)], events
    assert poll.poll(0) == []
    waiter = Waiter(poll)
    poll.modify(server, select.EPOLLIN | select.EPOLLONESHOT)
    assert waiter.got() == [(server.fileno(), select.EPOLLIN)], waiter.events
    poll.modify(server, select.EPOLLIN | select.EPOLLET)
    assert poll.poll(5) == [(server.fileno(), select.EPOLLIN)]
    waiter = Waiter(poll)
    poll.modify(server, select.EPOLLIN | select.EPOLLET)
    assert waiter.got() == [(server.fileno(), select.EPOLLIN)], waiter.events
    poll.unregister(server)
    waiter = Waiter(poll)
    poll.register(server, select.EPOLLIN)
    assert waiter.got() == [(server.fileno(), select.EPOLLIN)], waiter.events
    assert server.recv(100) == b"one"
    assert poll.poll(0.05) == []
    # An added edge-triggered entry with unread bytes in the ring and in the kernel is reported once.
    client, server = pair()
    poll = select.epoll()
    poll.register(idle, select.EPOLLIN)
    client.sendall(b"by the ring")
    out, into = os.pipe()
    os.write(into, b"by TCP")
    assert os.splice(out, client.fileno(), 6) == 6
    waiter = Waiter(poll)
    poll.register(server, select.EPOLLIN | select.EPOLLET)
    assert waiter.got() == [(server.fileno(), select.EPOLLIN)], waiter.events
    assert (events := poll.poll(0)) == [], events
elif mode == "output":
    # An event reports EPOLLOUT together with EPOLLIN: at an edge, and if the caller takes only one event.
    client, server = pair()
    both = select.EPOLLIN | select.EPOLLOUT
    poll = select.epoll()
    poll.register(server, both | select.EPOLLET)
    assert poll.poll(5) == [(server.fileno(), select.EPOLLOUT)]
    for i in range(100):
        client.sendall(b"edge")
        assert (events := poll.poll(5)) == [(server.fileno(), both)], events
        assert server.recv(100) == b"edge"
    poll.modify(server, both)
    for i in range(100):
        client.sendall(b"level")
        assert (events := poll.poll(5, 1)) == [(server.fileno(), both)], events
        assert server.recv(100) == b"level"
    # An edge for another reason reports unread input as well.
    poll.modify(server, both | select.EPOLLET)
    assert poll.poll(5) == [(server.fileno(), select.EPOLLOUT)]
    client.sendall(b"unread")
    assert (events := poll.poll(5)) == [(server.fileno(), both)], events
    poll.modify(server, select.EPOLLIN | select.EPOLLONESHOT)
    assert (events := poll.poll(5)) == [(server.fileno(), select.EPOLLIN)], events
    waiter = Waiter(poll)
    poll.modify(server, both)
    assert (events := waiter.got()) == [(server.fileno(), both)], events
    fresh = select.epoll()
    waiter = Waiter(fresh)
    fresh.register(server, both)
    assert (events := waiter.got()) == [(server.fileno(), both)], events
    fresh.close()
    poll.modify(server, both | select.EPOLLET)
    assert (events := poll.poll(5)) == [(server.fileno(), both)], events
    server.shutdown(socket.SHUT_WR)
    assert (events := poll.poll(5)) == [(server.fileno(), both)], events
    # An event for output reports unread input even if a set before it in the set is ready.
    client, server = pair()
    other_client, other = pair()
    poll, inner = select.epoll(), select.epoll()
    inner.register(other, select.EPOLLIN)
    poll.register(inner, select.EPOLLIN)
    poll.register(server, both | select.EPOLLET)
    other_client.sendall(b"unread")
    client.sendall(b"unread")
    assert all(select.select([end], [], [], 5)[0] for end in (other, server))  # TCP delivers bytes a moment later
    expected = {inner.fileno(): select.EPOLLIN, server.fileno(): both}
    assert (events := dict(poll.poll(5))) == expected, events
    server.shutdown(socket.SHUT_WR)
    assert (events := dict(poll.poll(5))) == expected, events
elif mode == "order":
    # epoll reports the connection first whose bytes were sent first, as by TCP.  One connection has no ring, so its
    # events come from the kernel.
    ringless_peer = Peer(listener.getsockname()[1])
    accepted = listener.accept()[0]
    pairs = [pair() for _ in range(8)] + [(ringless_peer, accepted)]
    poll = select.epoll()
    for client, server in reversed(pairs):
        poll.register(server, select.EPOLLIN)
    for i in range(100):
        send_order = [pairs[(k * 3 + i) % 8] for k in range(8)]
        if i < 2:
            send_order.insert(0, pairs[-1])
        for client, server in send_order:
            client.sendall(b"x")
            assert select.select([server], [], [], 5)[0]  # TCP delivers bytes a moment later
        order = []
        while len(order) < len(send_order):
            order += [fd for fd, _ in poll.poll(5) if fd not in order]
        assert order == [server.fileno() for _, server in send_order], (i, order)
        for client, server in send_order:
            assert server.recv(100) == b"x"
        assert poll.poll(0) == []  # the kernel finds the connections empty, and so clears their order
elif mode == "fair":
    # epoll omits no connection while others always have bytes, whether its event comes from the ring or from the
    # kernel.
    pairs = [pair() for _ in range(4)]
    for event_max in (1, 2, 3):
        for unread in range(5):
            poll = select.epoll()
            for client, server in pairs:
                poll.register(server, select.EPOLLIN)
            poll.register(listener, select.EPOLLIN)
            for client, server in pairs[:unread]:
                client.sendall(b"x")
                assert select.select([server], [], [], 5)[0]  # TCP delivers bytes a moment later
            waiting = socket.create_connection(listener.getsockname())
            seen = {fd for _ in range(12) for fd, _ in poll.poll(5, event_max)}
            assert seen == {listener.fileno(), *(server.fileno() for _, server in pairs[:unread])}, (event_max, unread, seen)
            listener.accept()[0].close()
            for _, server in pairs[:unread]:
                assert server.recv(100) == b"x"
elif mode == "exclusive":
    # Each of two sets with an exclusive entry for the same connection reports its bytes.
    client, server = pair()
    polls = [select.epoll() for _ in range(2)]
    for poll in polls:
        poll.register(server, select.EPOLLIN | select.EPOLLEXCLUSIVE)
    for i in range(200):
        client.sendall(b"x")
        assert polls[i % 2].poll(5) == [(server.fileno(), select.EPOLLIN)], i
        assert server.recv(100) == b"x"
elif mode == "edges":
    # An outer set reports each arrival of bytes once with EPOLLET, and only one arrival with EPOLLONESHOT.
    client, server = pair()
    client.sendall(b"x")
    assert select.select([server], [], [], 5)[0]  # TCP delivers bytes a moment later
    inner, outer = select.epoll(), select.epoll()
    inner.register(server, select.EPOLLIN)
    outer.register(inner, select.EPOLLIN | select.EPOLLET)
    once = [(inner.fileno(), select.EPOLLIN)]
    assert outer.poll(5) == once
    for i in range(200):
        assert outer.poll(0) == [], i
        client.sendall(b"x")
        assert outer.poll(5) == once, i
    waiter = Waiter(outer)
    client.sendall(b"x")
    assert waiter.got() == once, waiter.events
    assert server.recv(202, socket.MSG_WAITALL) == b"x" * 202
    assert outer.poll(0) == []
    client.sendall(b"x")
    assert outer.poll(5) == once
    waiter = Waiter(outer)
    inner.unregister(server)
    inner.register(server, select.EPOLLIN)
    assert waiter.got() == once, waiter.events
    outer.modify(inner, select.EPOLLIN | select.EPOLLONESHOT)
    for i in range(10):
        assert outer.poll(5) == once, i
        client.sendall(b"x")
        assert select.select([server], [], [], 5)[0]
        assert outer.poll(0) == [], i
        outer.modify(inner, select.EPOLLIN | select.EPOLLONESHOT)
    assert server.recv(11, socket.MSG_WAITALL) == b"x" * 11
elif mode == "equal":
    # Two one-shot entries have the same data.  After the event of the first entry, the second entry still has its
    # event.
    class Event(ctypes.Structure):
        _pack_ = 1 if os.uname().machine == "x86_64" else 8
        _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]
    libc = ctypes.CDLL(None, use_errno=True)
    client, server = pair()
    peer = Peer(listener.getsockname()[1])
    other = listener.accept()[0]
    poll = libc.epoll_create1(0)
    for end in (server, other):
        event = Event(select.EPOLLIN | select.EPOLLONESHOT, 1 << 40)
        assert libc.epoll_ctl(poll, 1, end.fileno(), ctypes.byref(event)) == 0
    for sender in (client, peer):
        sender.sendall(b"x")
        assert libc.epoll_wait(poll, ctypes.byref(event), 1, 5000) == 1
        assert (event.events, event.data) == (select.EPOLLIN, 1 << 40)
elif mode == "read":
    # An arrival of bytes is an edge even if the program reads them before it waits.  The wait then reports EPOLLOUT.
    client, server = pair()
    poll, inner, outer = select.epoll(), select.epoll(), select.epoll()
    poll.register(server, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    inner.register(server, select.EPOLLIN | select.EPOLLOUT)
    outer.register(inner, select.EPOLLIN | select.EPOLLET)
    for i in range(200):
        assert poll.poll(0) == [(server.fileno(), select.EPOLLOUT)], i
        assert outer.poll(0) == [(inner.fileno(), select.EPOLLIN)], i
        assert poll.poll(0) == outer.poll(0) == [], i
        client.sendall(b"x")
        assert server.recv(1) == b"x"
elif mode == "closed":
    # Bytes wake a thread that sleeps in epoll_wait() even after the set was closed.  The next set has none of its
    # entries.
    client, server = pair()
    for i in range(50):
        poll = select.epoll()
        poll.register(server, select.EPOLLIN)
        waiter = Waiter(poll)
        poll.close()
        client.sendall(b"12345")
        assert waiter.got() == [(server.fileno(), select.EPOLLIN)], waiter.events
        assert server.recv(100) == b"12345"
        client.sendall(b"67890")
        assert server.recv(100) == b"67890"
elif mode in ("nested", "polled", "selected"):
    client, server = pair()
    inner = select.epoll()
    inner.register(server, select.EPOLLIN)
    if mode == "nested":
        outer = select.epoll()
        outer.register(inner, select.EPOLLIN)
        wait = lambda timeout: bool(outer.poll(timeout))
    elif mode == "polled":
        outer = select.poll()
        outer.register(inner, select.POLLIN)
        wait = lambda timeout: bool(outer.poll(timeout * 1000))
    else:
        wait = lambda timeout: bool(select.select([inner], [], [], timeout)[0])
    for i in range(200):
        client.sendall(b"x")
        assert wait(5), i
        assert inner.poll(0) == [(server.fileno(), select.EPOLLIN)], i
        assert server.recv(100) == b"x"
        assert not wait(0), i
    # A thread that sleeps for the outer set is woken when a connection with bytes is added to the inner set.
    client, server = pair()
    client.sendall(b"x")
    got = []
    thread = threading.Thread(target=lambda: got.append(wait(10)))
    thread.start()
    until_it_sleeps(thread.native_id)
    inner.register(server, select.EPOLLIN)
    thread.join()
    assert got == [True] and inner.poll(0) == [(server.fileno(), select.EPOLLIN)]
elif mode in ("without_input", "set_without_input"):
    # A thread sleeps for a set whose entry does not ask for input, so bytes of the connection may go by the ring.
    client, server = pair()
    inner = select.epoll()
    inner.register(server, select.EPOLLIN)
    poll, entry = select.epoll(), server if mode == "without_input" else inner
    poll.register(entry, 0)
    for i in range(3):
        waiter = Waiter(poll)
        for _ in range(100):
            client.sendall(b"0123456789")
            assert server.recv(100) == b"0123456789"
        # When the entry asks for input, bytes that have arrived already wake the thread, and so do bytes that arrive
        # later.
        if i == 0:
            client.sendall(b"x")
        poll.modify(entry, select.EPOLLIN)
        if i == 2:
            poll.modify(entry, 0)
            poll.modify(entry, select.EPOLLIN)
        if i > 0:
            client.sendall(b"x")
        assert waiter.got() == [(entry.fileno(), select.EPOLLIN)], i
        assert server.recv(100) == b"x"
        poll.modify(entry, 0)
PY
service_counter() { verbena sockets stat --json | python3 -c '
import json, sys
service = json.load(sys.stdin)["service"] or {"total": {}}
print(service["total"].get(sys.argv[1], service.get(sys.argv[1], 0)))' "$1"; }
for mode in output order fair edges equal read closed without_input set_without_input; do
  timeout 120 python3 "$work/modes.py" $mode >"$work/client" 2>&1 || fail "by TCP, $mode: $(cat "$work/client")"
done
for mode in oneshot arm output order fair exclusive edges equal read closed nested polled selected without_input set_without_input; do
  before=$(service_counter by_ring)
  verbena run --sockets -- timeout 120 python3 "$work/modes.py" $mode >"$work/client" 2>&1 || fail "$mode: $(cat "$work/client")"
  [[ $mode = arm || $mode = fair || $mode = equal ]] || [ "$(service_counter by_ring)" -gt $((before + 150)) ] || fail "$mode: the bytes did not go by the ring: $(verbena sockets stat)"
done
