"""Runs programs that use messaging libraries under `verbena run --sockets`."""
import signal

from programs import Programs
from programs_named import MB

PROGRAMS = Programs()
PYTHON = "/usr/bin/python3"
MODULES = "/usr/lib/python3/dist-packages"

ZMQ = """
import hashlib, sys, zmq
kind, at = sys.argv[1], 'tcp://127.0.0.1:%d'
port = int(sys.argv[2])
c = zmq.Context(io_threads=2)
if kind == 'serve':
    answer, publish, pull = c.socket(zmq.REP), c.socket(zmq.XPUB), c.socket(zmq.PULL)
    for i, one in enumerate((publish, pull, answer)):
        one.set_hwm(0)
        one.bind(at % (port + 2 - i))
    p = zmq.Poller()
    for one in (answer, publish, pull): p.register(one, zmq.POLLIN)
    got = 0
    while True:
        for one, _ in p.poll():
            m = one.recv_multipart()
            if one is answer:
                answer.send_multipart([hashlib.md5(b''.join(m)).digest(), *m] if m[0] != b'count' else [b'%d' % got])
                if m[0] == b'end': sys.exit()
            elif one is publish:
                for i in range(2000): publish.send_multipart([b'a' if i % 2 else b'b', b'%d' % i * 500])
            else: got += sum(map(len, m))
else:
    requester, subscriber, push = c.socket(zmq.REQ), c.socket(zmq.SUB), c.socket(zmq.PUSH)
    for i, one in enumerate((subscriber, push, requester)):
        one.set_hwm(0)
        one.connect(at % (port + 2 - i))
    for i in range(1000):
        parts = [b'x' * (i * 10), b'', bytes([i % 256]) * (i % 7)]
        requester.send_multipart(parts)
        answer = requester.recv_multipart()
        assert answer == [hashlib.md5(b''.join(parts)).digest(), *parts], i
    subscriber.subscribe(b'a')
    print(hashlib.md5(b''.join(subscriber.recv_multipart()[1] for i in range(1000))).hexdigest())
    for i in range(300): push.send(b'y' * 10000)
    got = 0
    while got < 3000000:
        requester.send(b'count')
        got = int(requester.recv())
    print(got)
    requester.send(b'end')
    print(len(requester.recv_multipart()))
"""


@PROGRAMS.add(f"{MODULES}/zmq")
def zeromq(r):
    """Threads of ZeroMQ serve all connections by epoll, and wake the program by eventfds."""
    program = r.text("messages.py", ZMQ)
    with r.server(PYTHON, program, "serve", r.port, stop=None):
        r.client(PYTHON, program, "call", r.port, exact=True)


@PROGRAMS.add("nanocat")
def nanomsg(r):
    big = r.text("big", "x" * MB)
    at = f"tcp://127.0.0.1:{r.port}"
    with r.server("nanocat", "--rep", "--bind", at, "--file", big, "-A", keep=None, stop=signal.SIGKILL):
        for _ in range(3):
            r.client("nanocat", "--req", "--connect", at, "--data", "question", "-A", "--recv-timeout", "10")
    with r.server("nanocat", "--pub", "--bind", at, "--data", "news", "-i", "0.01", keep=None, stop=signal.SIGKILL):
        r.client("bash", "-c", f"nanocat --sub --connect {at} --ascii | head -n 500 | sort -u")


@PROGRAMS.add("nngcat")
def nng(r):
    big = r.text("big", "x" * MB)
    at = f"tcp://127.0.0.1:{r.port}"
    with r.server("nngcat", "--rep", "--bind", at, "--file", big, keep=None, stop=signal.SIGKILL):
        for _ in range(3):
            r.client("bash", "-c", f"nngcat --req --dial {at} --data question --raw --recv-timeout 10 | md5sum",
                     exact=True)
    with r.server("nngcat", "--pub", "--bind", at, "--data", "news", "-i", "1", keep=None, stop=signal.SIGKILL):
        r.client("nngcat", "--sub", "--dial", at, "--quoted", "--count", "2")


GRPC = """
import sys, grpc
from concurrent import futures
at, same = '127.0.0.1:' + sys.argv[2], dict(request_serializer=None, response_deserializer=None)
BIG = [('grpc.max_receive_message_length', -1)]
if sys.argv[1] == 'serve':
    class Echo(grpc.GenericRpcHandler):
        def service(self, call):
            return {'/echo/One': grpc.unary_unary_rpc_method_handler(lambda m, c: m * 2),
                    '/echo/Many': grpc.unary_stream_rpc_method_handler(lambda m, c: (m for i in range(500))),
                    '/echo/Both': grpc.stream_stream_rpc_method_handler(lambda all, c: (m[::-1] for m in all)),
                    }.get(call.method)
    server = grpc.server(futures.ThreadPoolExecutor(4), options=BIG)
    server.add_generic_rpc_handlers((Echo(),))
    server.add_insecure_port(at)
    server.start()
    server.wait_for_termination()
else:
    with grpc.insecure_channel(at, options=BIG) as c:
        one, many, both = c.unary_unary('/echo/One'), c.unary_stream('/echo/Many'), c.stream_stream('/echo/Both')
        print(all(one(b'x' * (i * 100)) == b'x' * (i * 200) for i in range(300)))
        print(len(one(b'y' * 5000000)))
        waiting = [one.future(b'%d' % i * 1000) for i in range(200)]
        print(all(w.result() == b'%d' % i * 2000 for i, w in enumerate(waiting)))
        print(sum(map(len, many(b'z' * 10000))))
        print(sum(map(len, both(b'%d' % i * 500 for i in range(300)))))
        try: c.unary_unary('/echo/None')(b'')
        except grpc.RpcError as e: print(e.code())
"""


@PROGRAMS.add(f"{MODULES}/grpc", min_bytes=MB)
def grpc(r):
    program = r.text("echo.py", GRPC)
    with r.server(PYTHON, program, "serve", r.port, stop=signal.SIGKILL):
        r.client(PYTHON, program, "call", r.port, exact=True)
