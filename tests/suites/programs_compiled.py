"""Runs compiled programs and event libraries under `verbena run --sockets`."""
import os
import signal

from programs import Programs
from programs_named import MB

PROGRAMS = Programs()

UV = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>
static void allocate(uv_handle_t* h, size_t n, uv_buf_t* b) {
  (void)h;
  b->base = malloc(n);
  b->len = n;
}
static void on_close(uv_handle_t* h) { free(h); }
static void on_write(uv_write_t* w, int status) {
  free(w->data);
  free(w);
  if (status < 0) printf("write %s\n", uv_err_name(status));
}
static void on_shutdown(uv_shutdown_t* s, int status) {
  (void)status;
  uv_close((uv_handle_t*)s->handle, on_close);
  free(s);
}
static void echo(uv_stream_t* s, ssize_t n, const uv_buf_t* b) {
  if (n > 0) {
    uv_write_t* w = malloc(sizeof *w);
    uv_buf_t out = uv_buf_init(b->base, n);
    w->data = b->base;
    // Small messages are written at once if possible, as many programs do.
    if (n < 1000 && uv_try_write(s, &out, 1) == n) {
      free(b->base);
      free(w);
      return;
    }
    if (uv_write(w, s, &out, 1, on_write) != 0) puts("no write");
    return;
  }
  free(b->base);
  if (n == UV_EOF) {
    uv_shutdown_t* d = malloc(sizeof *d);
    uv_shutdown(d, s, on_shutdown);
  } else if (n < 0) {
    printf("read %s\n", uv_err_name(n));
    uv_close((uv_handle_t*)s, on_close);
  }
}
static void on_connection(uv_stream_t* l, int status) {
  uv_tcp_t* c = malloc(sizeof *c);
  (void)status;
  uv_tcp_init(l->loop, c);
  uv_accept(l, (uv_stream_t*)c);
  uv_tcp_nodelay(c, 1);
  uv_read_start((uv_stream_t*)c, allocate, echo);
}
static size_t got[20];
static int open_connections = 20, bad;
static void on_read(uv_stream_t* s, ssize_t n, const uv_buf_t* b) {
  long i = (long)s->data;
  for (ssize_t k = 0; k < n; ++k) bad += b->base[k] != (char)(i + (got[i] + k) % 7);
  if (n > 0) got[i] += n;
  free(b->base);
  if (n < 0) {
    printf("%ld: %zu %s\n", i, got[i], uv_err_name(n));
    uv_close((uv_handle_t*)s, on_close);
    if (--open_connections == 0) uv_stop(s->loop);
  }
}
static void on_client_shutdown(uv_shutdown_t* s, int status) {
  if (status != 0) puts(uv_err_name(status));
  free(s);
}
static void on_connect(uv_connect_t* c, int status) {
  long i = (long)c->data;
  size_t size = i * 20001;
  if (status != 0) {
    puts(uv_err_name(status));
    exit(1);
  }
  c->handle->data = (void*)i;
  uv_read_start(c->handle, allocate, on_read);
  for (size_t done = 0; done < size || size == 0;) {
    size_t n = size - done < 3000 ? size - done : 3000;
    uv_write_t* w = malloc(sizeof *w);
    w->data = malloc(n + 1);
    for (size_t k = 0; k < n; ++k) ((char*)w->data)[k] = (char)(i + (done + k) % 7);
    uv_buf_t out = uv_buf_init(w->data, n);
    uv_write(w, c->handle, &out, 1, on_write);
    done += n;
    if (size == 0) break;
  }
  uv_shutdown_t* d = malloc(sizeof *d);
  uv_shutdown(d, c->handle, on_client_shutdown);
}
int main(int argc, char** argv) {
  uv_loop_t* loop = uv_default_loop();
  struct sockaddr_in address;
  uv_ip4_addr("127.0.0.1", atoi(argv[2]), &address);
  (void)argc;
  if (argv[1][0] == 's') {
    uv_tcp_t l;
    uv_tcp_init(loop, &l);
    uv_tcp_bind(&l, (struct sockaddr*)&address, 0);
    uv_listen((uv_stream_t*)&l, 64, on_connection);
    return uv_run(loop, UV_RUN_DEFAULT);
  }
  for (long i = 0; i < 20; ++i) {
    uv_tcp_t* c = malloc(sizeof *c);
    uv_connect_t* o = malloc(sizeof *o);
    uv_tcp_init(loop, c);
    o->data = (void*)i;
    uv_tcp_connect(o, c, (struct sockaddr*)&address, on_connect);
  }
  uv_run(loop, UV_RUN_DEFAULT);
  printf("bad %d\n", bad);
  return bad != 0;
}
"""

ECHO_CLIENT = r"""
import socket, sys, threading
def call(i):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
    sent = bytes([i, 7, 9]) * (i * 20000)
    def send():
        for k in range(300): s.sendall(b'%03d ' % k)
        s.sendall(sent); s.shutdown(socket.SHUT_WR)
    t = threading.Thread(target=send); t.start()
    with s.makefile('rb') as f: got = f.read()
    t.join(); good[i] = got == b''.join(b'%03d ' % k for k in range(300)) + sent
good = {}
all = [threading.Thread(target=call, args=(i,)) for i in range(12)]
for t in all: t.start()
for t in all: t.join()
print(good.values())
"""

EV = r"""
#include <errno.h>
#include <ev.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
struct connection {
  ev_io io;
  char data[60000];
  size_t at, end;
  int ended;
};
static void echo(struct ev_loop* l, ev_io* w, int e) {
  struct connection* o = (struct connection*)w;
  (void)e;
  if (o->at < o->end) {
    ssize_t n = send(w->fd, o->data + o->at, o->end - o->at, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) o->at += n;
    else if (errno != EAGAIN) o->ended = 1, o->at = o->end;
  } else {
    ssize_t n = recv(w->fd, o->data, sizeof o->data, MSG_DONTWAIT);
    if (n > 0) o->at = 0, o->end = n;
    else if (n == 0 || errno != EAGAIN) o->ended = 1;
  }
  if (o->ended) {
    ev_io_stop(l, w);
    close(w->fd);
    free(o);
    return;
  }
  int events = o->at < o->end ? EV_WRITE : EV_READ;
  if (events != w->events) {
    ev_io_stop(l, w);
    ev_io_set(w, w->fd, events);
    ev_io_start(l, w);
  }
}
static void on_accept(struct ev_loop* l, ev_io* w, int e) {
  int fd = accept4(w->fd, 0, 0, SOCK_NONBLOCK);
  struct connection* o = calloc(1, sizeof *o);
  (void)e;
  if (fd < 0) {
    free(o);
    return;
  }
  ev_io_init(&o->io, echo, fd, EV_READ);
  ev_io_start(l, &o->io);
}
int main(int argc, char** argv) {
  struct ev_loop* l = ev_default_loop(atoi(argv[2]));
  struct sockaddr_in address = {AF_INET, htons(atoi(argv[1])), {htonl(INADDR_LOOPBACK)}, {0}};
  int s = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1;
  ev_io w;
  (void)argc;
  if (l == 0) {
    puts("no such backend");
    return 1;
  }
  setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  bind(s, (struct sockaddr*)&address, sizeof address);
  listen(s, 64);
  ev_io_init(&w, on_accept, s, EV_READ);
  ev_io_start(l, &w);
  ev_run(l, 0);
}
"""


@PROGRAMS.add("gcc", "/usr/include/uv.h", min_bytes=100_000)
def libuv(r):
    r.prepare("gcc", "-O", "-o", "uv", r.text("uv.c", UV), "-luv")
    with r.server(r.path("uv"), "serve", r.port, stop=signal.SIGKILL):
        r.client(r.path("uv"), "call", r.port, exact=True)
        r.client("python3", r.text("call.py", ECHO_CLIENT), r.port)


@PROGRAMS.add("gcc", "/usr/include/ev.h", min_bytes=100_000)
def libev(r):
    """Runs libev by select, poll and epoll."""
    r.prepare("gcc", "-O", "-o", "ev", r.text("ev.c", EV), "-lev")
    client = r.text("call.py", ECHO_CLIENT)
    for backend in (1, 2, 4):
        with r.server(r.path("ev"), r.port, backend, stop=signal.SIGKILL):
            r.client("python3", client, r.port)


EVENT = r"""
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <event2/thread.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
static void on_flushed(struct bufferevent* b, void* x) {
  (void)x;
  if (evbuffer_get_length(bufferevent_get_output(b)) == 0) bufferevent_free(b);
}
static void echo(struct bufferevent* b, void* x) {
  (void)x;
  evbuffer_add_buffer(bufferevent_get_output(b), bufferevent_get_input(b));
}
static void on_event(struct bufferevent* b, short what, void* x) {
  if ((what & BEV_EVENT_EOF) == 0) {
    bufferevent_free(b);
    return;
  }
  echo(b, x);
  bufferevent_setcb(b, 0, on_flushed, on_event, 0);
  bufferevent_disable(b, EV_READ);
  on_flushed(b, x);
}
static void on_accept(struct evconnlistener* l, evutil_socket_t fd, struct sockaddr* a, int n, void* base) {
  (void)l;
  (void)a;
  (void)n;
  struct bufferevent* b = bufferevent_socket_new(base, fd, BEV_OPT_CLOSE_ON_FREE | BEV_OPT_THREADSAFE);
  bufferevent_setcb(b, echo, 0, on_event, 0);
  bufferevent_enable(b, EV_READ | EV_WRITE);
}
static void* loop(void* base) {
  event_base_loop(base, EVLOOP_NO_EXIT_ON_EMPTY);
  return 0;
}
int main(int argc, char** argv) {
  struct sockaddr_in address = {AF_INET, htons(atoi(argv[1])), {htonl(INADDR_LOOPBACK)}, {0}};
  pthread_t t;
  (void)argc;
  evthread_use_pthreads();
  struct event_config* c = event_config_new();
  if (strcmp(argv[2], "et") == 0) event_config_require_features(c, EV_FEATURE_ET);
  else event_config_avoid_method(c, "epoll");
  event_config_set_flag(c, EVENT_BASE_FLAG_EPOLL_USE_CHANGELIST);
  struct event_base *accepts = event_base_new_with_config(c), *serves = event_base_new_with_config(c);
  pthread_create(&t, 0, loop, serves);
  evconnlistener_new_bind(accepts, on_accept, serves, LEV_OPT_REUSEABLE | LEV_OPT_CLOSE_ON_FREE, 64,
                          (struct sockaddr*)&address, sizeof address);
  event_base_dispatch(accepts);
}
"""


@PROGRAMS.add("gcc", "/usr/include/event2/event.h", min_bytes=100_000)
def libevent(r):
    """One thread accepts, and another thread serves: by epoll with a list of changes, and by poll."""
    r.prepare("gcc", "-O", "-o", "event", r.text("event.c", EVENT), "-levent", "-levent_pthreads")
    client = r.text("call.py", ECHO_CLIENT)
    for kind in ("et", "poll"):
        with r.server(r.path("event"), r.port, kind, stop=signal.SIGKILL):
            r.client("python3", client, r.port)


RUST = r"""
use std::io::{copy, BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let at = format!("127.0.0.1:{}", a[2]);
    if a[1] == "serve" {
        for c in TcpListener::bind(&at).unwrap().incoming() {
            thread::spawn(move || {
                let c = c.unwrap();
                let mut out = c.try_clone().unwrap();
                let mut r = BufReader::new(&c);
                let mut line = String::new();
                r.read_line(&mut line).unwrap();
                out.write_all(line.as_bytes()).unwrap();
                let n = copy(&mut r, &mut out).unwrap();
                out.write_all(&n.to_be_bytes()).unwrap();
                out.shutdown(Shutdown::Both).ok();
            });
        }
    }
    let all: Vec<_> = (0..16u64)
        .map(|i| {
            let at = at.clone();
            thread::spawn(move || {
                let c = TcpStream::connect(at).unwrap();
                c.set_nodelay(true).unwrap();
                let mut w = c.try_clone().unwrap();
                let t = thread::spawn(move || {
                    w.write_all(b"hello\n").unwrap();
                    w.write_all(&vec![i as u8; i as usize * 100000]).unwrap();
                    w.shutdown(Shutdown::Write).unwrap();
                });
                let mut got = Vec::new();
                (&c).read_to_end(&mut got).unwrap();
                t.join().unwrap();
                got.len() as u64 == 6 + i * 100000 + 8 && got[6..got.len() - 8].iter().all(|b| *b == i as u8)
            })
        })
        .collect();
    println!("{:?}", all.into_iter().map(|t| t.join().unwrap()).collect::<Vec<_>>());
    // copy() sends a file to the socket by sendfile() or splice().
    let (mut c, mut f) = (TcpStream::connect(&at).unwrap(), std::fs::File::open(&a[3]).unwrap());
    c.write_all(b"file\n").unwrap();
    let r = c.try_clone().unwrap();
    let t = thread::spawn(move || copy(&mut { r }, &mut std::fs::File::create("copy").unwrap()).unwrap());
    println!("{}", copy(&mut f, &mut c).unwrap());
    c.shutdown(Shutdown::Write).unwrap();
    println!("{}", t.join().unwrap());
}
"""


@PROGRAMS.add("rustc", min_bytes=100_000)
def rust(r):
    """Rust's copy() sends files by sendfile() and splice()."""
    big = r.data("big", 3 * MB)
    r.prepare("rustc", "-O", "-o", "echo", r.text("echo.rs", RUST))
    with r.server(r.path("echo"), "serve", r.port, stop=signal.SIGKILL):
        r.client(r.path("echo"), "call", r.port, big, exact=True)
        r.note_file("copy")


MONO = r"""
using System;
using System.IO;
using System.Linq;
using System.Net;
using System.Net.Sockets;
using System.Text;
using System.Threading.Tasks;
static class Echo {
  static async Task Serve(TcpClient c) {
    using (c) {
      var s = c.GetStream();
      var b = new byte[30000];
      int n;
      while ((n = await s.ReadAsync(b, 0, b.Length)) > 0) await s.WriteAsync(b, 0, n);
    }
  }
  static async Task<bool> Call(int port, int i) {
    using (var c = new TcpClient()) {
      await c.ConnectAsync("127.0.0.1", port);
      var s = c.GetStream();
      var sent = Enumerable.Repeat((byte)i, i * 30000).ToArray();
      var w = Task.Run(async () => {
        for (int k = 0; k < sent.Length; k += 5000) await s.WriteAsync(sent, k, 5000);
        c.Client.Shutdown(SocketShutdown.Send);
      });
      var got = new MemoryStream();
      await s.CopyToAsync(got);
      await w;
      return got.ToArray().SequenceEqual(sent);
    }
  }
  static void Main(string[] a) {
    int port = int.Parse(a[1]);
    if (a[0] == "serve") {
      var l = new TcpListener(IPAddress.Loopback, port);
      l.Start();
      while (true) {
        var c = l.AcceptTcpClient();
        Task.Run(() => Serve(c));
      }
    }
    Console.WriteLine(string.Join(" ", Task.WhenAll(Enumerable.Range(0, 12).Select(i => Call(port, i))).Result));
    var t = new TcpClient("127.0.0.1", port);
    var r = new StreamReader(t.GetStream());
    var o = new StreamWriter(t.GetStream()) { AutoFlush = true };
    for (int i = 0; i < 500; i++) {
      o.WriteLine("line " + i);
      if (r.ReadLine() != "line " + i) Console.WriteLine("bad");
    }
    var q = new Socket(AddressFamily.InterNetwork, SocketType.Stream, ProtocolType.Tcp);
    q.Connect("127.0.0.1", port);
    q.Blocking = false;
    q.Send(new byte[10]);
    Console.WriteLine(q.Poll(5000000, SelectMode.SelectRead));
    Console.WriteLine(q.Available);
  }
}
"""


@PROGRAMS.add("mcs", "mono")
def mono(r):
    r.prepare("mcs", "-out:echo.exe", r.text("echo.cs", MONO))
    with r.server("mono", r.path("echo.exe"), "serve", r.port, stop=signal.SIGKILL):
        r.client("mono", r.path("echo.exe"), "call", r.port, exact=True)


LUA = r"""
local socket = require 'socket'
if arg[1] == 'serve' then
  local l = assert(socket.bind('127.0.0.1', arg[2])); local all = {l}
  l:settimeout(0)
  while true do
    for _, c in ipairs(socket.select(all, nil)) do
      if c == l then local n = l:accept(); n:settimeout(5); all[#all + 1] = n
      else local line, e = c:receive('*l')
        if line then local n = tonumber(line); c:send(line .. '\n' .. string.rep('x', n))
        else c:close(); for i, o in ipairs(all) do if o == c then table.remove(all, i) break end end end end end
  end
end
local all = {}
for i = 1, 8 do all[i] = assert(socket.connect('127.0.0.1', arg[2])); all[i]:setoption('tcp-nodelay', true) end
local sum = 0
for k = 1, 200 do
  for i, c in ipairs(all) do c:send((k * i * 10) .. '\n') end
  for i, c in ipairs(all) do local n = tonumber(c:receive('*l')); sum = sum + #(c:receive(n) or '') end
end
print(sum)
"""


@PROGRAMS.add("lua5.4", "/usr/share/lua/5.4/socket.lua", min_bytes=MB)
def lua(r):
    program = r.text("echo.lua", LUA)
    with r.server("lua5.4", program, "serve", r.port, stop=signal.SIGKILL):
        r.client("lua5.4", program, "call", r.port, exact=True)


@PROGRAMS.add("ucx_perftest", min_bytes=MB,
              not_only="two processes that connect to each other hold a lock that their accepting threads need")
def ucx(r):
    """A thread of UCX waits for an epoll set.  This set contains the epoll set of the connections, without events."""
    env = os.environ | {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
    for test in ("tag_bw", "tag_lat", "stream_bw", "ucp_put_bw", "ucp_am_bw"):
        with r.server("ucx_perftest", "-p", r.port, env=env, keep="rror|failed", stop=None):
            r.client("ucx_perftest", "127.0.0.1", "-p", r.port, "-t", test, "-s", "20000", "-n", "300", env=env,
                     keep="rror|failed|Test:")


@PROGRAMS.add("fi_pingpong")
def libfabric(r):
    for kind in ("tcp;ofi_rxm", "sockets"):
        with r.server("fi_pingpong", "-p", kind, "-e", "rdm", "-B", r.port, "-I", "200", "-S", "50000",
                      keep="rror|failed", stop=None):
            r.client("fi_pingpong", "-p", kind, "-e", "rdm", "-P", r.port, "-I", "200", "-S", "50000", "127.0.0.1",
                     keep="rror|failed")
    with r.server("fi_pingpong", "-p", "tcp", "-e", "msg", "-B", r.port, "-I", "200", "-S", "50000",
                  keep="rror|failed", stop=None):
        r.client("fi_pingpong", "-p", "tcp", "-e", "msg", "-P", r.port, "-I", "200", "-S", "50000", "127.0.0.1",
                 keep="rror|failed")
