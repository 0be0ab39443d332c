"""Runs Python's network libraries under `verbena run --sockets`."""
import signal

from programs import Programs
from programs_named import MB

PROGRAMS = Programs()
PYTHON = "/usr/bin/python3"
MODULES = "/usr/lib/python3/dist-packages"

# Each of the programs from TRIO to TORNADO defines serve(port), a server that returns the bytes of each connection in
# reverse, and calls(port, requests), which makes a connection for each request and returns the answers.  THREADS
# defines call(port, data), which makes one request.
THREADS = """
import socket
def call(port, data):
    with socket.create_connection(('127.0.0.1', port)) as s:
        s.sendall(data); s.shutdown(socket.SHUT_WR)
        with s.makefile('rb') as f: return f.read()
"""
TRIO = """
import trio
async def echo(stream):
    await stream.send_all(b''.join([part async for part in stream])[::-1])
def serve(port): trio.run(trio.serve_tcp, echo, port)
async def one(port, data, results, i):
    async with await trio.open_tcp_stream('127.0.0.1', port) as s:
        await s.send_all(data); await s.send_eof(); results[i] = b''.join([part async for part in s])
async def all_of(port, requests):
    results = {}
    async with trio.open_nursery() as n:
        for i, data in enumerate(requests): n.start_soon(one, port, data, results, i)
    return [results[i] for i in range(len(requests))]
def calls(port, requests): return trio.run(all_of, port, requests)
"""
ASYNCIO = """
import asyncio
async def echo(reader, writer):
    writer.write((await reader.read())[::-1]); await writer.drain(); writer.close()
async def run_server(port):
    async with await asyncio.start_server(echo, '127.0.0.1', port, reuse_port=True) as s: await s.serve_forever()
def serve(port): asyncio.run(run_server(port))
async def one(port, data):
    reader, writer = await asyncio.open_connection('127.0.0.1', port)
    writer.write(data); writer.write_eof(); answer = await reader.read(); writer.close(); return answer
async def all_of(port, requests): return await asyncio.gather(*(one(port, data) for data in requests))
def calls(port, requests): return asyncio.run(all_of(port, requests))
"""
UVLOOP = "import uvloop; uvloop.install()\n" + ASYNCIO
GEVENT = """
from gevent import monkey; monkey.patch_all()
import gevent, gevent.server, gevent.socket
def echo(s, peer):
    with s.makefile('rb') as f: data = f.read()
    s.sendall(data[::-1]); s.close()
def serve(port): gevent.server.StreamServer(('127.0.0.1', port), echo).serve_forever()
def calls(port, requests): return [g.get() for g in [gevent.spawn(call, port, data) for data in requests]]
""" + THREADS
EVENTLET = """
import eventlet; eventlet.monkey_patch()
def echo(s, peer):
    with s.makefile('rb') as f: data = f.read()
    s.sendall(data[::-1]); s.close()
def serve(port): eventlet.serve(eventlet.listen(('127.0.0.1', port)), echo)
def calls(port, requests): return [g.wait() for g in [eventlet.spawn(call, port, data) for data in requests]]
""" + THREADS
TWISTED = """
from twisted.internet import REACTOR
REACTOR.install()
from twisted.internet import reactor, protocol, defer, interfaces
from zope.interface import implementer
@implementer(interfaces.IHalfCloseableProtocol)
class Reverser(protocol.Protocol):
    def __init__(self): self.got = []
    def dataReceived(self, data): self.got.append(data)
    def writeConnectionLost(self): pass
    def readConnectionLost(self):
        self.transport.write(b''.join(self.got)[::-1]); self.transport.loseConnection()
class Client(Reverser):
    def connectionMade(self): self.transport.write(self.factory.data); self.transport.loseWriteConnection()
    def readConnectionLost(self): self.transport.loseConnection(); self.factory.done.callback(b''.join(self.got))
def serve(port):
    f = protocol.Factory(); f.protocol = Reverser
    reactor.listenTCP(port, f, interface='127.0.0.1'); reactor.run()
def calls(port, requests):
    waiting, answers = [], []
    for data in requests:
        f = protocol.ClientFactory(); f.protocol = Client; f.data, f.done = data, defer.Deferred()
        waiting.append(f.done); reactor.connectTCP('127.0.0.1', port, f)
    defer.gatherResults(waiting).addCallback(lambda all: (answers.extend(all), reactor.stop()))
    reactor.run()
    return answers
"""
TORNADO = """
import tornado.ioloop, tornado.tcpserver, tornado.tcpclient, tornado.iostream, tornado.gen
class Echo(tornado.tcpserver.TCPServer):
    async def handle_stream(self, stream, address):
        n = int(await stream.read_until(b' ')); data = await stream.read_bytes(n)
        await stream.write(data[::-1]); stream.close()
def serve(port): Echo(max_buffer_size=10**8).listen(port, '127.0.0.1'); tornado.ioloop.IOLoop.current().start()
async def one(port, data):
    s = await tornado.tcpclient.TCPClient().connect('127.0.0.1', port, max_buffer_size=10**8)
    await s.write(b'%d ' % len(data) + data)
    return await s.read_until_close()
async def all_of(port, requests): return await tornado.gen.multi([one(port, data) for data in requests])
def calls(port, requests): return tornado.ioloop.IOLoop.current().run_sync(lambda: all_of(port, requests))
"""
MAIN = """
import sys
if sys.argv[1] == 'serve':
    serve(int(sys.argv[2]))
else:
    for sizes in [([100] * 50, range(0, 300000, 30000), [2000000] * 4)[int(i)] for i in sys.argv[3]]:
        requests = [bytes([i % 251, 7]) * (size // 2) for i, size in enumerate(sizes)]
        print([a == e[::-1] or len(a) for a, e in zip(calls(int(sys.argv[2]), requests), requests)])
"""


def echo(r, text, runs=("012",)):
    """Runs a library's server, and its clients for 64 connections."""
    program = r.text("echo.py", text + MAIN)
    with r.server(PYTHON, program, "serve", r.port, keep=None, stop=signal.SIGKILL):
        for run in runs:
            r.client(PYTHON, program, "call", r.port, run)


@PROGRAMS.add(f"{MODULES}/trio", min_bytes=MB)
def python_trio(r):
    echo(r, TRIO)


@PROGRAMS.add(f"{MODULES}/uvloop", min_bytes=100)
def python_uvloop(r):
    """Runs libuv, also with a peer that uses the event loop of Python's standard library."""
    echo(r, UVLOOP)
    with r.server(PYTHON, r.text("other.py", ASYNCIO + MAIN), "serve", r.port, keep=None, stop=signal.SIGKILL):
        r.client(PYTHON, "echo.py", "call", r.port, "012")


@PROGRAMS.add(f"{MODULES}/gevent", min_bytes=MB)
def python_gevent(r):
    """Runs libev by epoll and by poll."""
    echo(r, GEVENT)
    echo(r, "import os; os.environ['GEVENT_BACKEND'] = 'poll'\n" + GEVENT)


@PROGRAMS.add(f"{MODULES}/eventlet", min_bytes=MB)
def python_eventlet(r):
    for hub in ("epolls", "selects"):
        echo(r, f"import os; os.environ['EVENTLET_HUB'] = '{hub}'\n" + EVENTLET)


@PROGRAMS.add(f"{MODULES}/twisted", min_bytes=MB)
def python_twisted(r):
    for reactor in ("epollreactor", "pollreactor", "selectreactor"):
        echo(r, TWISTED.replace("REACTOR", reactor), "012")


@PROGRAMS.add(f"{MODULES}/tornado", min_bytes=MB)
def python_tornado(r):
    echo(r, TORNADO)


AIOHTTP = """
import asyncio, sys, aiohttp
from aiohttp import web
async def post(q):
    n = 0
    async for part in q.content.iter_any(): n += len(part)
    return web.Response(body=b'x' * n)
async def talk(q):
    ws = web.WebSocketResponse(max_msg_size=0); await ws.prepare(q)
    async for m in ws: await ws.send_bytes(m.data[::-1])
    return ws
def serve(port, directory):
    app = web.Application(client_max_size=0)
    app.add_routes([web.post('/', post), web.get('/ws', talk), web.static('/files', directory)])
    web.run_app(app, host='127.0.0.1', port=port, print=None)
async def call(url):
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=6)) as s:
        async def one(i):
            async with s.post(url, data=b'y' * (i * 20000)) as a: return len(await a.read()) == i * 20000
        print(await asyncio.gather(*(one(i) for i in range(40))))
        async with s.get(url + 'files/big') as a: print(len(await a.read()))
        part = {'Range': 'bytes=100-299'}
        async with s.get(url + 'files/big', headers=part) as a: print(a.status, len(await a.read()))
        async with s.ws_connect(url + 'ws', max_msg_size=0) as ws:
            for i in range(200):
                sent = bytes([i]) * (i * 300)
                await ws.send_bytes(sent)
                assert (await ws.receive_bytes()) == sent, i
if sys.argv[1] == 'serve': serve(int(sys.argv[2]), sys.argv[3])
else: asyncio.run(call(f'http://127.0.0.1:{sys.argv[2]}/'))
"""


@PROGRAMS.add(f"{MODULES}/aiohttp", min_bytes=MB)
def python_aiohttp(r):
    """The server sends files by sendfile() from asyncio's loop.  Connections carry bytes in both directions."""
    r.data("big", 3 * MB)
    program = r.text("web.py", AIOHTTP)
    with r.server(PYTHON, program, "serve", r.port, r.directory, stop=signal.SIGINT):
        r.client(PYTHON, program, "call", r.port, exact=True)
