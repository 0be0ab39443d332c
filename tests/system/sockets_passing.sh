#!/bin/bash
# Tests connections that are passed to another process (SCM_RIGHTS, pidfd_getfd) while their ring has unread bytes.  A
# process with the library must be able to read these bytes.  If the other process does not have the library, both ends
# must get an error.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need python3
export VERBENA_SOCKETS_EARLY=5000  # so that each connection has its ring before the first byte

cat >"$work/passing.py" <<'PY'
import array, ctypes, fcntl, os, signal, socket, struct, subprocess, sys, termios, traceback

UNREAD = bytes(range(256)) * 200
RECEIVER = """
import os, socket, sys
channel = socket.socket(fileno=int(sys.argv[1]))
_, fds, _, _ = socket.recv_fds(channel, 1, 8)
connection = socket.socket(fileno=fds[0])
got = b""
try:
    while len(got) < 51200:
        piece = connection.recv(65536)
        if not piece:
            break
        got += piece
    connection.sendall(b"more")
except OSError as error:
    got = error.strerror.encode()
channel.sendall(got)
"""

def peer(listener, report):
    """Sends UNREAD, and reports what the other end sends after that, or an error."""
    connection = listener.accept()[0]
    connection.recv(2)
    connection.sendall(UNREAD)
    rest = b""
    try:
        while piece := connection.recv(1000):
            rest += piece
    except OSError as error:
        rest = error.strerror.encode()
    report.sendall(rest)

def connection_with_unread_bytes():
    """Returns a connection, and a function that returns the bytes or the error that its peer has got."""
    listener = socket.create_server(("127.0.0.1", 0))
    report, into = socket.socketpair()
    child = os.fork()
    if child == 0:
        report.close()
        peer(listener, into)
        os._exit(0)
    into.close()
    connection = socket.create_connection(listener.getsockname())
    listener.close()
    connection.sendall(b"go")
    unread = array.array("i", [0])
    in_kernel = array.array("i", [0])
    while unread[0] < len(UNREAD):
        fcntl.ioctl(connection, termios.FIONREAD, unread)
    c = ctypes.CDLL(None)
    ioctl = {"x86_64": 16, "aarch64": 29}[os.uname().machine]  # the kernel's count has no bytes of the ring
    c.syscall(ctypes.c_long(ioctl), connection.fileno(), termios.FIONREAD, ctypes.c_void_p(in_kernel.buffer_info()[0]))
    assert in_kernel[0] < len(UNREAD), "all bytes went by TCP"
    def received_by_peer():
        got = b"".join(iter(lambda: report.recv(1000), b""))
        os.waitpid(child, 0)
        return got
    return connection, received_by_peer

def read_all(connection, count=len(UNREAD)):
    got = b""
    while len(got) < count:
        piece = connection.recv(min(65536, count - len(got)))
        assert piece, len(got)
        got += piece
    return got

def in_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return lambda: os.waitpid(child, 0)[1]

def receive_socket(channel, flags=0):
    _, control, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4), flags)
    return socket.socket(fileno=int.from_bytes(control[0][2], sys.byteorder))

def a_child_continues_to_read_after_its_parent_has_closed():
    connection, received_by_peer = connection_with_unread_bytes()
    here, there = socket.socketpair()
    def work():
        here.close()
        connection.close()  # the copy that fork() has made
        taken = receive_socket(there)
        assert read_all(taken) == UNREAD
        taken.sendall(b"more")
    end = in_child(work)
    socket.send_fds(here, [b"x"], [connection.fileno()])
    connection.close()
    return end(), received_by_peer()

def a_process_without_a_copy_continues_to_read():
    here, there = socket.socketpair()
    def work():
        taken = receive_socket(there)
        assert read_all(taken) == UNREAD
        taken.sendall(b"more")
        taken.close()
    end = in_child(work)
    connection, received_by_peer = connection_with_unread_bytes()
    socket.send_fds(here, [b"x"], [connection.fileno()])
    connection.close()
    return end(), received_by_peer()

def both_processes_read():
    here, there = socket.socketpair()
    def work():
        taken = receive_socket(there)
        assert read_all(taken, 20000) == UNREAD[:20000]
        there.sendall(b"y")
        assert there.recv(1) == b"z"
        assert read_all(taken, 21200) == UNREAD[30000:]
        taken.sendall(b"more")
    end = in_child(work)
    connection, received_by_peer = connection_with_unread_bytes()
    socket.send_fds(here, [b"x"], [connection.fileno()])
    assert here.recv(1) == b"y"
    assert read_all(connection, 10000) == UNREAD[20000:30000]
    here.sendall(b"z")
    status = end()
    connection.close()
    return status, received_by_peer()

def the_program_passes_to_itself_and_peeks():
    connection, received_by_peer = connection_with_unread_bytes()
    here, there = socket.socketpair()
    socket.send_fds(here, [b"x"], [connection.fileno()])
    peeked = receive_socket(there, socket.MSG_PEEK)
    taken = receive_socket(there)
    connection.close()
    assert read_all(peeked, 1000) == UNREAD[:1000]
    peeked.close()
    assert read_all(taken, 50200) == UNREAD[1000:]
    taken.sendall(b"more")
    taken.close()
    return received_by_peer()

def a_message_that_is_not_sent_changes_nothing():
    connection, received_by_peer = connection_with_unread_bytes()
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    here.setblocking(False)
    sent = 0
    try:
        while True:
            here.send(b"x")
            sent += 1
    except BlockingIOError:
        pass
    for _ in range(3):
        try:
            socket.send_fds(here, [b"x"], [connection.fileno()])
            raise AssertionError("sent")
        except BlockingIOError:
            pass
    assert read_all(connection) == UNREAD
    connection.sendall(b"more")
    connection.close()
    return received_by_peer()

def the_last_close_with_unread_bytes_resets():
    connection, received_by_peer = connection_with_unread_bytes()
    here, there = socket.socketpair()
    socket.send_fds(here, [b"x"], [connection.fileno()])
    taken = receive_socket(there)
    connection.close()
    taken.close()
    return received_by_peer()

def the_user_timeout_has_the_value_of_the_program():
    connection, received_by_peer = connection_with_unread_bytes()
    here, there = socket.socketpair()
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 12345)
    socket.send_fds(here, [b"x"], [connection.fileno()])
    values = [connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)]
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 54321)
    values.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    taken = receive_socket(there)
    values.append(taken.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT))
    connection.close()
    assert read_all(taken) == UNREAD
    taken.close()
    return values, received_by_peer()

def pidfd_getfd_shares_the_stream(by_number=False):
    connection, received_by_peer = connection_with_unread_bytes()
    here, there = socket.socketpair()
    parent = os.getpid()
    number = connection.fileno()
    c = ctypes.CDLL(None, use_errno=True)
    c.prctl(0x59616d61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER: any process may use pidfd_getfd()
    def work():
        connection.close()
        SYS_pidfd_getfd = 438
        call = (lambda *a: c.syscall(ctypes.c_long(SYS_pidfd_getfd), *a)) if by_number else c.pidfd_getfd
        fd = call(os.pidfd_open(parent), number, 0)
        assert fd >= 0, os.strerror(ctypes.get_errno())
        taken = socket.socket(fileno=fd)
        there.sendall(b"y")
        assert there.recv(1) == b"z"
        assert read_all(taken) == UNREAD
        taken.sendall(b"more")
    end = in_child(work)
    assert here.recv(1) == b"y"
    connection.close()
    here.sendall(b"z")
    return end(), received_by_peer()

def syscall_pidfd_getfd_shares_the_stream():
    return pidfd_getfd_shares_the_stream(by_number=True)

def a_connection_that_must_use_the_ring_is_passed_without_unread_bytes():
    connection, received_by_peer = connection_with_unread_bytes()
    here, there = socket.socketpair()
    assert read_all(connection) == UNREAD
    socket.send_fds(here, [b"x"], [connection.fileno()])
    taken = receive_socket(there)
    connection.close()
    taken.sendall(b"more")
    taken.close()
    return received_by_peer()

def a_malformed_message_is_refused():
    class Message(ctypes.Structure):
        _fields_ = [("name", ctypes.c_void_p), ("name_bytes", ctypes.c_uint), ("parts", ctypes.c_void_p),
                    ("part_count", ctypes.c_size_t), ("control", ctypes.c_void_p), ("control_bytes", ctypes.c_size_t),
                    ("flags", ctypes.c_int)]
    here, there = socket.socketpair()
    c = ctypes.CDLL(None, use_errno=True)
    errors = []
    for length in (0, 1, 15, 25, 2 ** 40):
        control = ctypes.create_string_buffer(struct.pack("Niii", length, socket.SOL_SOCKET, socket.SCM_RIGHTS, 0), 24)
        message = Message(control=ctypes.addressof(control), control_bytes=24)
        assert c.sendmsg(here.fileno(), ctypes.byref(message), 0) == -1
        errors.append(os.strerror(ctypes.get_errno()))
    return set(errors)

def pass_to_program(environment):
    connection, received_by_peer = connection_with_unread_bytes()
    here, there = socket.socketpair()
    program = subprocess.Popen([sys.executable, "-c", RECEIVER, str(there.fileno())], pass_fds=[there.fileno()],
                               env=environment)
    there.close()
    while b"_socket" not in (maps := open(f"/proc/{program.pid}/maps", "rb").read()) and program.poll() is None:
        pass  # until the program has loaded its libraries
    socket.send_fds(here, [b"x"], [connection.fileno()])
    connection.close()
    got = b"".join(iter(lambda: here.recv(65536), b""))
    program.wait()
    return got if len(got) < 100 else got == UNREAD, received_by_peer()

def another_program_continues_to_read():
    return pass_to_program(dict(os.environ))

def a_program_without_the_library_gets_an_error():
    environment = dict(os.environ)
    environment["LD_PRELOAD"] = os.environ.get("SANITIZER", "")
    return pass_to_program(environment)

signal.alarm(100)  # ends the test if a call never returns
for name in sys.argv[1:]:
    print(name, globals()[name](), flush=True)
PY

cases=(a_child_continues_to_read_after_its_parent_has_closed a_process_without_a_copy_continues_to_read both_processes_read
  the_program_passes_to_itself_and_peeks a_message_that_is_not_sent_changes_nothing
  the_last_close_with_unread_bytes_resets the_user_timeout_has_the_value_of_the_program pidfd_getfd_shares_the_stream
  syscall_pidfd_getfd_shares_the_stream a_malformed_message_is_refused
  another_program_continues_to_read a_program_without_the_library_gets_an_error)
export SANITIZER=${VB_PRELOAD:-}
verbena run --sockets -- timeout 100 python3 "$work/passing.py" "${cases[@]}" >"$work/output" 2>&1 || fail "exit $?: $(cat "$work/output")"
diff "$work/output" - <<'EXPECTED' || fail "other results than expected"
a_child_continues_to_read_after_its_parent_has_closed (0, b'more')
a_process_without_a_copy_continues_to_read (0, b'more')
both_processes_read (0, b'more')
the_program_passes_to_itself_and_peeks b'more'
a_message_that_is_not_sent_changes_nothing b'more'
the_last_close_with_unread_bytes_resets b'Connection reset by peer'
the_user_timeout_has_the_value_of_the_program ([12345, 54321, 54321], b'')
pidfd_getfd_shares_the_stream (0, b'more')
syscall_pidfd_getfd_shares_the_stream (0, b'more')
a_malformed_message_is_refused {'Invalid argument'}
another_program_continues_to_read (True, b'more')
a_program_without_the_library_gets_an_error (b'Connection reset by peer', b'Connection reset by peer')
EXPECTED

# ---- a connection that must use the ring must also use it in the other process
cases=(a_child_continues_to_read_after_its_parent_has_closed a_process_without_a_copy_continues_to_read both_processes_read
  a_connection_that_must_use_the_ring_is_passed_without_unread_bytes)
verbena run --sockets=only -- timeout 100 python3 "$work/passing.py" "${cases[@]}" >"$work/output" 2>&1 || fail "only: exit $?: $(cat "$work/output")"
diff "$work/output" - <<'EXPECTED' || fail "only: other results than expected"
a_child_continues_to_read_after_its_parent_has_closed (0, b'more')
a_process_without_a_copy_continues_to_read (0, b'more')
both_processes_read (0, b'more')
a_connection_that_must_use_the_ring_is_passed_without_unread_bytes b'more'
EXPECTED
