#!/bin/bash
# Tests that rare socket calls have the same results by the ring as by TCP.  Each case has failed once.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export VERBENA_IDLE=600  # so that one service counts the bytes of all programs
need python3

cat >"$work/calls.py" <<'PY'
import ctypes, errno, fcntl, mmap, os, select, signal, socket, struct, termios, threading, time

listener = socket.create_server(("127.0.0.1", 0))
libc = ctypes.CDLL(None, use_errno=True)
libc.fdopen.restype = ctypes.c_void_p
libc.fclose.argtypes = [ctypes.c_void_p]
signal.alarm(60)  # ends the test if a call does not return

def pair():
    """Returns both ends of a connection that uses the ring, if the program runs under Verbena."""
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    for i in range(30):
        for sender, receiver in ((client, server), (server, client)):
            sender.sendall(b"%500d" % i)
            assert receiver.recv(500, socket.MSG_WAITALL) == b"%500d" % i
        time.sleep(0.001)
    return client, server

recv_calls = {"x86_64": ("45", "47"), "aarch64": ("207", "212")}[os.uname().machine]
recvmmsg_calls = {"x86_64": ("47", "299"), "aarch64": ("212", "243")}[os.uname().machine]
# A send by the ring waits in poll().
send_calls = {"x86_64": ("44", "46", "7", "271"), "aarch64": ("206", "211", "73")}[os.uname().machine]

def until_it_sleeps(thread, calls=recv_calls):
    while True:
        with open(f"/proc/self/task/{thread.native_id}/syscall") as file:
            if file.read().split()[0] in calls:
                return

def start_sleeping_call(call, calls=recv_calls):
    """Starts a thread that makes the call, and waits until it sleeps in the kernel.  Returns a function that waits for
    the end of the call and returns its result."""
    result = []
    thread = threading.Thread(target=lambda: result.append(call()))
    thread.start()
    until_it_sleeps(thread, calls)
    def end():
        thread.join()
        return result[0]
    return end

def error_of(call):
    try:
        return call()
    except OSError as error:
        return errno.errorcode[error.errno]

def wait_all_fills_all_buffers_and_no_more():
    client, server = pair()
    buffer = bytearray(64)
    view = memoryview(buffer)
    end = start_sleeping_call(lambda: server.recvmsg_into([view[0:10], view[16:36]], 0, socket.MSG_WAITALL)[0])
    client.sendall(b"a" * 15)  # wakes the reader within the second part
    until_read(server)
    client.sendall(b"b" * 20)
    print(end(), bytes(buffer), server.recv(100))

def wait_all_discards_all_bytes():
    client, server = pair()
    client.sendall(bytes(65536) + b"next")
    print(libc.recv(server.fileno(), None, 65536, socket.MSG_TRUNC | socket.MSG_WAITALL), server.recv(100))

def until_read(end):
    while struct.unpack("i", fcntl.ioctl(end, termios.FIONREAD, b"\0" * 4))[0] > 0:
        time.sleep(0.001)

def urgent_data_stands_between_other_bytes():
    client, server = pair()
    client.sendall(b"before")
    print(server.recv(100))
    client.sendall(b"more")
    client.send(b"!", socket.MSG_OOB)
    client.sendall(b"after")
    poll = select.poll()
    poll.register(server, select.POLLPRI)
    assert poll.poll(5000)
    print(server.recv(100), server.recv(1, socket.MSG_OOB), server.recv(100), end=" ")
    client.sendall(b"last")
    print(server.recv(100))

def fclose_releases_the_descriptor():
    client, server = pair()
    number = server.detach()
    assert libc.fclose(libc.fdopen(number, b"r+")) == 0
    read_end, write_end = os.pipe()
    ends = {read_end: "read", write_end: "write"}
    os.write(write_end, b"by the pipe")
    print(ends.get(number), os.read(read_end, 100), client.recv(100))
    os.close(read_end)
    os.close(write_end)

def received_messages_have_no_address_and_no_control_data():
    client, server = pair()
    client.sendall(b"one")
    data, control, flags, name = server.recvmsg(100, 200)
    print(data, control, flags, name)
    client.sendall(b"two")
    print(server.recvfrom(100))

def recvmmsg_returns_the_length_of_each_message():
    client, server = pair()
    client.sendall(b"123456789")
    buffers = [ctypes.create_string_buffer(5) for _ in range(3)]
    parts = [(ctypes.c_size_t * 2)(ctypes.addressof(buffer), 5) for buffer in buffers]
    messages = b"".join(struct.pack("PI4xPNPNi4xI4x", 0, 77, ctypes.addressof(part), 1, 0, 0, 0, 99) for part in parts)
    array = ctypes.create_string_buffer(messages, len(messages))
    got = libc.recvmmsg(server.fileno(), array, 3, socket.MSG_DONTWAIT, None)
    each = len(messages) // 3
    print(got, [struct.unpack_from("I", array, i * each + each - 8)[0] for i in range(got)], [b.raw for b in buffers])

def an_error_that_ends_recvmmsg_is_reported_by_the_next_call():
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]  # it has no ring yet
    buffer = ctypes.create_string_buffer(5)
    part = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 5)
    messages = struct.pack("PI4xPNPNi4xI4x", 0, 0, ctypes.addressof(part), 1, 0, 0, 0, 0) * 2
    array = ctypes.create_string_buffer(messages, len(messages))
    client.sendall(b"first")
    end = start_sleeping_call(lambda: libc.recvmmsg(server.fileno(), array, 2, 0, None), recvmmsg_calls)
    until_read(server)
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    print(end(), buffer.raw, error_of(lambda: server.recv(100)))

def nothing_is_sent_after_shutdown():
    client, server = pair()
    client.shutdown(socket.SHUT_WR)
    print(error_of(lambda: client.send(b"x")), server.recv(100))
    client, server = pair()
    server.shutdown(socket.SHUT_RDWR)
    print(client.recv(100), error_of(lambda: client.send(b"x")), end=" ")
    poll = select.poll()
    poll.register(client, 0)
    assert poll.poll(5000)  # the reset has arrived
    print(error_of(lambda: client.send(b"x")))

def dprintf_keeps_the_order():
    client, server = pair()
    client.sendall(b"first ")
    assert libc.dprintf(client.fileno(), b"second ") == 7
    client.sendall(b"third")
    print(server.recv(18, socket.MSG_WAITALL))

def until_reset(end):
    poll = select.poll()
    poll.register(end, 0)
    assert poll.poll(5000)

def close_range_releases_the_descriptors():
    client, server = pair()
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # otherwise TCP would delay the bytes
    server.sendall(b"unread")
    number = client.detach()
    assert libc.close_range(number, number, 0) == 0
    until_reset(server)
    print(error_of(lambda: server.recv(100)))

def a_child_that_closes_all_descriptors_holds_no_connection():
    client, server = pair()
    if (child := os.fork()) == 0:
        libc.close_range(3, 0xffffffff, 0)
        os.execlp("true", "true")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.sendall(b"unread")
    client.close()
    until_reset(server)
    print(error_of(lambda: server.recv(100)))

def a_child_that_closes_all_descriptors_holds_no_connection_of_a_call_in_another_thread():
    client, server = pair()
    end = start_sleeping_call(lambda: client.recv(100))
    if (child := os.fork()) == 0:
        libc.close_range(3, 0xffffffff, 0)
        os.execlp("true", "true")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server.sendall(b"read")
    print(end(), end=" ")
    server.sendall(b"unread")
    client.close()
    until_reset(server)
    print(error_of(lambda: server.recv(100)))

def a_signal_ends_wait_all():
    client, server = pair()
    def interrupt():
        until_it_sleeps(threading.main_thread())
        client.sendall(b"some")
        until_read(server)
        until_it_sleeps(threading.main_thread())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    thread = threading.Thread(target=interrupt)
    thread.start()
    print(server.recv(100, socket.MSG_WAITALL))
    thread.join()

def an_error_behind_unread_bytes_stays_in_the_kernel():
    client, server = pair()
    client.sendall(b"before")
    server.shutdown(socket.SHUT_RDWR)
    assert select.select([client], [], [], 5)[0]  # the end of the stream has arrived
    client.send(b"too late")
    until_reset(server)
    poll = select.poll()
    poll.register(server, 0)
    print(server.recv(100, socket.MSG_WAITALL), poll.poll(0)[0][1], end=" ")
    print(*(errno.errorcode.get(server.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) for _ in range(2)))

def a_reset_that_ends_a_send_is_reported_once():
    client, server = pair()
    end = start_sleeping_call(lambda: client.send(bytes(16 << 20)), send_calls)
    server.close()
    print(0 < end() < 16 << 20, error_of(lambda: client.recv(100)), error_of(lambda: client.recv(100)))

def sigio_comes_for_bytes_behind_unread_bytes_in_the_ring():
    client, server = pair()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO})
    client.sendall(b"unread")
    fcntl.fcntl(server, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(server, fcntl.F_SETFL, fcntl.fcntl(server, fcntl.F_GETFL) | os.O_ASYNC)
    client.sendall(b" and more")
    print(signal.sigtimedwait({signal.SIGIO}, 5) is not None, server.recv(15, socket.MSG_WAITALL))

def a_connection_after_one_that_was_shut_down_can_be_shut_down_too():
    for _ in range(2):
        client, server = pair()
        server.shutdown(socket.SHUT_RDWR)
        print(client.recv(100), client.send(b"x"), end=" ")
        until_reset(client)
        print(error_of(lambda: client.send(b"x")))
        server.close()
        client.close()

def a_call_goes_on_after_its_descriptor_is_closed():
    client, server = pair()
    end = start_sleeping_call(lambda: server.recv(828))
    server.close()
    client.sendall(b"x" * 4685)
    print(len(end()), end=" ")
    until_reset(client)
    print(error_of(lambda: client.send(b"x")))

def a_send_to_a_peer_that_sends_no_more_keeps_nodelay():
    client, server = pair()
    client.sendall(b"unread")
    server.shutdown(socket.SHUT_WR)
    assert client.recv(1) == b""
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    client.sendall(b"more")
    print(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

def processes_of_a_connection_share_its_options():
    client, server = pair()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    if os.fork() == 0:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        os._exit(0)
    os.wait()
    print(client.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

def the_urgent_mark_comes_after_older_bytes():
    client, server = pair()
    client.sendall(b"older")
    client.send(b"!", socket.MSG_OOB)
    poll = select.poll()
    poll.register(server, select.POLLPRI)
    assert poll.poll(5000)
    at_mark = lambda: struct.unpack("i", fcntl.ioctl(server, 0x8905, b"\0" * 4))[0]  # SIOCATMARK
    print(at_mark(), libc.sockatmark(server.fileno()), server.recv(100), at_mark(), libc.sockatmark(server.fileno()))

def a_receive_of_no_bytes_stops_at_urgent_data():
    client, server = pair()
    client.send(b"before!", socket.MSG_OOB)
    print(server.recv(100), end=" ")
    print(libc.recv(server.fileno(), ctypes.create_string_buffer(1), 0, 0))

def select_reads_no_more_of_the_set_than_the_kernel():
    """Some programs call select() with getdtablesize() as the limit, but with an fd_set of the usual size."""
    client, server = pair()
    pages = mmap.mmap(-1, 8192)
    begin = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    assert libc.mprotect(ctypes.c_void_p(begin + 4096), 4096, 0) == 0
    pages[4096 - 128:4096] = (1 << server.fileno()).to_bytes(128, "little")
    client.sendall(b"x")
    limit = (ctypes.c_long * 2)(5, 0)
    ready = libc.select(1 << 20, ctypes.c_void_p(begin + 4096 - 128), None, None, limit)
    print(ready, pages[4096 - 128:4096] == (1 << server.fileno()).to_bytes(128, "little"))

def writev_sends_many_buffers_by_tcp_in_one_call():
    client, server = pair()
    read_end, write_end = os.pipe()
    os.write(write_end, b"spliced ")
    os.splice(read_end, client.fileno(), 8)  # takes the connection back to TCP
    print(os.writev(client.fileno(), [b"%3d " % i for i in range(200)]), server.recv(808, socket.MSG_WAITALL)[-12:])

def zero_copy_is_reported_as_complete():
    SO_ZEROCOPY, MSG_ZEROCOPY = 60, 0x4000000
    client, server = pair()
    client.setsockopt(socket.SOL_SOCKET, SO_ZEROCOPY, 1)
    for parts in [b"zero" * 1000], [b"zero" * 1000], [b"zero" * 10] * 100:
        client.sendmsg(parts, [], MSG_ZEROCOPY)
        server.recv(4000, socket.MSG_WAITALL)
        poll = select.poll()
        poll.register(client, 0)
        assert poll.poll(5000) == [(client.fileno(), select.POLLERR)]
        _, control, _, _ = client.recvmsg(100, 200, socket.MSG_ERRQUEUE)
        _, _, _, _, _, first, last = struct.unpack("IBBBBII", control[0][2][:16])
        print(first, last, end=" ")
    print()

def preadv2_and_pwritev2_move_bytes_of_a_connection():
    client, server = pair()
    for i in range(3):
        sent = os.pwritev(client.fileno(), [b"one ", b"two"], -1, 0)
        buffers = [bytearray(5), bytearray(2)]
        print(sent, os.preadv(server.fileno(), buffers, -1, 0), buffers, end=" ")
    print(error_of(lambda: os.preadv(server.fileno(), buffers, -1, os.RWF_NOWAIT)))

def aio_request(end, buffer, count):
    """Returns a request (struct aiocb) that notifies nobody (SIGEV_NONE)."""
    head = struct.pack("iiiPNPii", end.fileno(), 0, 0, ctypes.addressof(buffer), count, 0, 0, 1)
    return ctypes.create_string_buffer(head, 256)

def finish(request):
    while (error := libc.aio_error(request)) == errno.EINPROGRESS:
        time.sleep(0.001)
    return errno.errorcode.get(error), libc.aio_return(request)

def asynchronous_requests_move_bytes_of_a_connection():
    client, server = pair()
    buffer = ctypes.create_string_buffer(b"written", 100)
    for name in "aio_write", "aio_write64":
        request = aio_request(client, buffer, 7)
        assert getattr(libc, name)(request) == 0
        print(*finish(request), server.recv(7, socket.MSG_WAITALL), end=" ")
    client.sendall(b" one")
    print(server.recv(100), end=" ")
    client, server = pair()
    for name in "aio_read", "aio_read64":
        request = aio_request(server, buffer, 100)
        assert getattr(libc, name)(request) == 0
        client.sendall(b"read")
        print(*finish(request), buffer.raw[:4], end=" ")
    client.sendall(b" two")
    print(server.recv(100), end=" ")
    client, server = pair()
    client.sendall(b"unread")
    request = aio_request(server, buffer, 100)
    if libc.aio_read(request) == 0:
        print(*finish(request), buffer.raw[:6])
    else:
        assert ctypes.get_errno() == errno.EINVAL  # the bytes lie in the ring
        print(None, 6, server.recv(100))

def tls_of_the_kernel_is_refused_beside_the_ring():
    client, server = pair()
    error = error_of(lambda: client.setsockopt(socket.IPPROTO_TCP, 31, b"tls"))
    assert "verbena-sockets" not in os.environ.get("LD_PRELOAD", "") or error == "ENOENT", error
    print()

def a_call_takes_long_timeouts_and_refuses_invalid_timeouts():
    client, server = pair()
    poll = select.epoll()
    poll.register(server, select.EPOLLIN)
    event = ctypes.create_string_buffer(16)
    time_of = lambda *timeout: (ctypes.c_long * 2)(*timeout)
    epoll_wait = lambda timeout: libc.epoll_pwait2(poll.fileno(), event, 1, time_of(*timeout), None)
    end = start_sleeping_call(lambda: epoll_wait((1 << 62, 0)), ("441",))
    client.sendall(b"x")
    print(end(), server.recv(1), end=" ")
    buffer = ctypes.create_string_buffer(1)
    part = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 1)
    messages = struct.pack("PI4xPNPNi4xI4x", 0, 0, ctypes.addressof(part), 1, 0, 0, 0, 0) * 2
    array = ctypes.create_string_buffer(messages, len(messages))
    receive = lambda timeout: libc.recvmmsg(server.fileno(), array, 2, 0, time_of(*timeout))
    client.sendall(b"yz")
    print(receive((1 << 62, 0)), end=" ")
    client.sendall(b"unread")
    one = ctypes.create_string_buffer(struct.pack("ihh", server.fileno(), select.POLLIN, 0), 8)
    ppoll = lambda timeout: libc.ppoll(one, 1, time_of(*timeout), None)
    descriptors = ctypes.create_string_buffer((1 << server.fileno()).to_bytes(128, "little"), 128)
    select_in = lambda call: lambda timeout: call(server.fileno() + 1, descriptors, None, None, time_of(*timeout), None)
    for call in epoll_wait, receive, ppoll, select_in(libc.pselect), select_in(libc.select):
        for timeout in (-1, 0), (0, -1):
            assert (call(timeout), ctypes.get_errno()) == (-1, errno.EINVAL), (call, timeout)
    for call in epoll_wait, receive, ppoll, select_in(libc.pselect):
        assert (call((0, 10 ** 9)), ctypes.get_errno()) == (-1, errno.EINVAL), call
    print(server.recv(100))

def a_failed_epoll_ctl_changes_nothing():
    client, server = pair()
    client.sendall(b"unread")
    event = ctypes.create_string_buffer(12)
    print(libc.epoll_ctl(-1, 1, server.fileno(), event), errno.errorcode[ctypes.get_errno()], server.recv(100))

def a_failed_dup3_changes_nothing():
    client, server = pair()
    client.sendall(b"unread")
    print(libc.dup3(listener.fileno(), server.fileno(), 1), errno.errorcode[ctypes.get_errno()], server.recv(100))

def a_descriptor_connects_a_second_time():
    client, server = pair()
    unspecified = struct.pack("H14x", socket.AF_UNSPEC)
    print(libc.connect(client.fileno(), unspecified, len(unspecified)), error_of(lambda: server.recv(100)), end=" ")
    client.connect(listener.getsockname())
    other = listener.accept()[0]
    for i in range(30):
        client.sendall(b"%500d" % i)
        assert other.recv(500, socket.MSG_WAITALL) == b"%500d" % i
        other.sendall(b"%5000d" % i)
        assert client.recv(5000, socket.MSG_WAITALL) == b"%5000d" % i
        time.sleep(0.001)
    print(i)

def a_connection_that_another_process_has_shut_down_does_not_change_over():
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    server.sendall(b"one")
    child = os.fork()
    if child == 0:
        client.shutdown(socket.SHUT_RDWR)
        os._exit(0)
    os.waitpid(child, 0)
    # With these calls, both ends get the memory of a ring.
    client.setblocking(False)
    server.setblocking(False)
    for _ in range(20):
        client.recv(100, socket.MSG_PEEK), server.recv(100)
        time.sleep(0.001)
    print(client.recv(100), server.send(b"two"), end=" ")
    # The kernel may deliver "two", and the reset that answers it, a moment later.
    reset = select.poll()
    reset.register(server, 0)  # POLLERR and POLLHUP are always reported
    assert reset.poll(20000), "no reset"
    print(error_of(lambda: client.recv(100)), end=" ")
    for _ in range(5):
        error_of(lambda: client.recv(100))
    print(error_of(lambda: server.send(b"three")))

signal.signal(signal.SIGPIPE, signal.SIG_IGN)
for case in (wait_all_fills_all_buffers_and_no_more, wait_all_discards_all_bytes, urgent_data_stands_between_other_bytes,
             fclose_releases_the_descriptor, received_messages_have_no_address_and_no_control_data,
             recvmmsg_returns_the_length_of_each_message, an_error_that_ends_recvmmsg_is_reported_by_the_next_call,
             nothing_is_sent_after_shutdown, dprintf_keeps_the_order,
             close_range_releases_the_descriptors, a_child_that_closes_all_descriptors_holds_no_connection,
             a_child_that_closes_all_descriptors_holds_no_connection_of_a_call_in_another_thread,
             a_signal_ends_wait_all, an_error_behind_unread_bytes_stays_in_the_kernel,
             a_reset_that_ends_a_send_is_reported_once, sigio_comes_for_bytes_behind_unread_bytes_in_the_ring,
             a_connection_after_one_that_was_shut_down_can_be_shut_down_too, a_call_goes_on_after_its_descriptor_is_closed,
             a_send_to_a_peer_that_sends_no_more_keeps_nodelay, processes_of_a_connection_share_its_options,
             the_urgent_mark_comes_after_older_bytes, a_receive_of_no_bytes_stops_at_urgent_data,
             select_reads_no_more_of_the_set_than_the_kernel, writev_sends_many_buffers_by_tcp_in_one_call,
             zero_copy_is_reported_as_complete, preadv2_and_pwritev2_move_bytes_of_a_connection,
             asynchronous_requests_move_bytes_of_a_connection,
             tls_of_the_kernel_is_refused_beside_the_ring, a_call_takes_long_timeouts_and_refuses_invalid_timeouts,
             a_failed_epoll_ctl_changes_nothing, a_failed_dup3_changes_nothing,
             a_descriptor_connects_a_second_time,
             a_connection_that_another_process_has_shut_down_does_not_change_over):
    print(case.__name__, end=": ")
    case()
PY
# Newer versions of Python warn of a fork beside another thread, with the process ID, which differs in each run.
export PYTHONWARNINGS=ignore::DeprecationWarning
timeout 80 python3 "$work/calls.py" >"$work/by_tcp" 2>&1 || fail "by TCP: $(cat "$work/by_tcp")"
verbena run --sockets -- timeout 80 python3 "$work/calls.py" >"$work/by_ring" 2>&1 || fail "by the ring: $(cat "$work/by_ring")"
diff "$work/by_tcp" "$work/by_ring" || fail "results differ from those by TCP"
by_ring=$(verbena sockets stat --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["service"]["total"]["by_ring"])')
[ "$by_ring" -gt 50000 ] || fail "only $by_ring bytes went by the ring"
cat "$work/by_ring"

# ---- a descriptor may be closed while a thread waits in a call on it: the service learns of its end after that call
cat >"$work/closed.py" <<'PY'
import json, os, socket, subprocess, sys, threading, time

def pairs():
    output = subprocess.run([sys.argv[1], "sockets", "stat", "--json"], capture_output=True, check=True).stdout
    return json.loads(output)["service"]["pairs"]

def until_pairs(count):
    deadline = time.monotonic() + 30
    while pairs() != count:
        assert time.monotonic() < deadline, pairs()
        client.sendall(b"x")
        assert server.recv(1) == b"x"

listener = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(listener.getsockname())
server = listener.accept()[0]
until_pairs(1)
waiter = threading.Thread(target=server.recv, args=(1,))
waiter.start()
recv_calls = {"x86_64": ("45", "47", "7", "271"), "aarch64": ("207", "212", "73")}[os.uname().machine]
while open(f"/proc/self/task/{waiter.native_id}/syscall").read().split()[0] not in recv_calls:
    pass
os.close(server.detach())
client.close()  # ends the call of the thread
waiter.join()
deadline = time.monotonic() + 30
while pairs() != 0:
    ends = subprocess.run([sys.argv[1], "sockets", "ls"], capture_output=True, check=True).stdout.decode()
    assert time.monotonic() < deadline, f"the service still has the pair: {ends}"
PY
verbena run --sockets -- timeout 60 python3 "$work/closed.py" "$VB_PREFIX/bin/verbena" >"$work/client" 2>&1 ||
  fail "a descriptor closed during a call: $(cat "$work/client")"

# ---- a connection may end before the program has received its memory from the service: no memory may stay mapped
cat >"$work/ended.py" <<'PY'
import socket, time

listener = socket.create_server(("127.0.0.1", 0))

def mapped():
    with open("/proc/self/maps") as file:
        return sum("verbena-stream" in line for line in file)

def exchange(client, server):
    client.sendall(b"x" * 5000)
    assert len(server.recv(5000, socket.MSG_WAITALL)) == 5000

for _ in range(100):
    pairs = []
    for _ in range(4):
        client = socket.create_connection(listener.getsockname())
        pairs.append((client, listener.accept()[0]))
        for _ in range(2):
            exchange(*pairs[-1])
    time.sleep(0.002)  # messages of the service arrive, and no call reads them before the descriptors are closed
    for one in pairs[:2]:
        for end in one:
            end.close()
    for _ in range(5):
        for one in pairs[2:]:
            exchange(*one)
        time.sleep(0.0005)
    for one in pairs[2:]:
        for end in one:
            end.close()
assert mapped() == 0, f"{mapped()} mappings are left"
PY
verbena run --sockets -- timeout 60 python3 "$work/ended.py" >"$work/client" 2>&1 ||
  fail "connections that end early: $(cat "$work/client")"

# ---- a signal handler may close a descriptor of an epoll set while its thread waits for events of this set
verbena run --sockets -- timeout 60 "$VB_PREFIX/tests/programs/handler_closes" >"$work/client" 2>&1 ||
  fail "a handler that closes a descriptor: exit code $?, $(cat "$work/client")"

# ---- a stopped service may delay only few calls of a program
service=$(verbena sockets stat --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["service"]["pid"])')
cat >"$work/many.py" <<'PY'
import socket, time

listener = socket.create_server(("127.0.0.1", 0))
begin = time.monotonic()
for _ in range(100):
    client = socket.create_connection(listener.getsockname())
    server = listener.accept()[0]
    for _ in range(5):
        client.sendall(b"x" * 5000)
        assert len(server.recv(5000, socket.MSG_WAITALL)) == 5000
assert time.monotonic() - begin < 20, time.monotonic() - begin
PY
# shellcheck disable=SC2016  # the inner shell expands these
verbena run --sockets -- bash -c 'kill -STOP "$1"; timeout 100 python3 "$2"; code=$?; kill -CONT "$1"; exit $code' \
  many "$service" "$work/many.py" >"$work/client" 2>&1 || fail "beside a stopped service: $(cat "$work/client")"
