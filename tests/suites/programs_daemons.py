"""Runs servers, some of them written in Go, under `verbena run --sockets`."""
import os
import pwd
import signal

from programs import Programs
from programs_named import MB

PROGRAMS = Programs()
GO = "Go does not use the C library"


@PROGRAMS.add("ngircd", "python3", root=True)
def ngircd(r):
    """Many clients join one chat.  Each client receives the lines of all others."""
    conf = r.text("conf", f"""
[Global]
Name = irc.x.y
Info = x
MotdPhrase = x
Listen = 127.0.0.1
Ports = {r.port}
ServerUID = root
ServerGID = root
AdminInfo1 = x
AdminInfo2 = x
AdminEMail = a@b.c
[Limits]
MaxConnectionsIP = 0
MaxPenaltyTime = 0
[Options]
DNS = no
Ident = no
PAM = no
""")
    client = r.text("chat.py", """
import socket, sys, threading
def talk(i):
    s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); f = s.makefile('rb')
    def until(word):
        while True:
            line = f.readline()
            if not line: raise EOFError(word)
            if line.startswith(b'PING'): s.sendall(b'PONG' + line[4:])
            if word in line: return line
    s.sendall(b'NICK n%d\\r\\nUSER u 0 * :x\\r\\n' % i); until(b' 376 ')
    s.sendall(b'JOIN #c\\r\\n'); until(b' 366 '); barrier.wait()
    for k in range(5): s.sendall(b'PRIVMSG #c :n%d says %d\\r\\n' % (i, k))
    counts[i] = sum(b'PRIVMSG' in until(b' says ') for _ in range(5 * (N - 1)))
    barrier.wait(); s.sendall(b'QUIT :bye\\r\\n'); until(b'ERROR'); s.close()
N = 12; barrier = threading.Barrier(N); counts = {}
all = [threading.Thread(target=talk, args=(i,)) for i in range(N)]
for t in all: t.start()
for t in all: t.join()
print(sorted(counts.items()))
""")
    with r.server("ngircd", "-n", "-f", conf, keep=None):
        r.client("python3", client, r.port)


@PROGRAMS.add("prometheus", "curl", "python3", not_only=GO)
def prometheus(r):
    """Prometheus, which is written in Go, fetches from a server that has the library."""
    conf = r.text("conf", f"""
global: {{ scrape_interval: 1s }}
scrape_configs:
- job_name: a
  metrics_path: /metrics
  static_configs: [{{ targets: ['127.0.0.1:{r.port + 1}'] }}]
""")
    r.text("metrics", "".join(f"many{{n=\"{i}\"}} {i}\n" for i in range(5000)))
    url = f"http://127.0.0.1:{r.port}"
    with r.server("python3", "-m", "http.server", r.port + 1, "--bind", "127.0.0.1", port=r.port + 1, keep=None), \
            r.server("prometheus", f"--config.file={conf}", f"--storage.tsdb.path={r.path('db')}",
                     f"--web.listen-address=127.0.0.1:{r.port}", keep=None, stop=signal.SIGKILL):
        r.client("bash", "-c",
                 f"until curl -sS '{url}/api/v1/query?query=sum(many)' | grep -o 12497500; do sleep 0.2; done")
        r.client("curl", "-sS", f"{url}/-/healthy")


@PROGRAMS.add("docker-registry", "curl", not_only=GO)
def docker_registry(r):
    conf = r.text("conf", f"""
version: 0.1
log: {{ level: error }}
storage: {{ filesystem: {{ rootdirectory: {r.path('images')} }} }}
http: {{ addr: '127.0.0.1:{r.port}' }}
""")
    big = r.data("big", 5 * MB)
    url = f"http://127.0.0.1:{r.port}/v2/x/blobs"
    with r.server("docker-registry", "serve", conf, keep=None):
        r.client("bash", "-c", f"sum=sha256:$(sha256sum {big} | cut -c1-64); "
                 f"to=$(curl -sS -i -X POST {url}/uploads/ | tr -d '\\r' | sed -n 's/^Location: //ip'); "
                 f"curl -sS -o said -w '%{{http_code}}\\n' -X PUT -H 'Content-Type: application/octet-stream' "
                 f"--data-binary @{big} \"$to&digest=$sum\"; "
                 f"curl -sS {url}/$sum -o copy; cat said", exact=True)
        r.note_file("copy")


@PROGRAMS.add("influxd", "curl", not_only=GO)
def influxdb(r):
    conf = r.text("conf", f"""
reporting-disabled = true
bind-address = "127.0.0.1:{r.port + 1}"
[meta]
dir = "{r.path('meta')}"
[data]
dir = "{r.path('data')}"
wal-dir = "{r.path('wal')}"
[http]
bind-address = "127.0.0.1:{r.port}"
""")
    lines = r.text("lines", "".join(f"m,t={i % 10} v={i} {i + 1}\n" for i in range(20000)))
    url = f"http://127.0.0.1:{r.port}"
    with r.server("influxd", "run", "-config", conf, keep=None):
        r.client("curl", "-sS", "-XPOST", f"{url}/query", "--data-urlencode", "q=CREATE DATABASE d")
        r.client("curl", "-sS", "-i", f"{url}/write?db=d&precision=s", "--data-binary", f"@{lines}", keep="HTTP")
        r.client("curl", "-sS", "-G", f"{url}/query", "--data-urlencode", "db=d", "--data-urlencode",
                 "q=SELECT sum(v), count(v) FROM m", exact=True)
        r.client("curl", "-sS", "-G", f"{url}/query", "--data-urlencode", "db=d", "--data-urlencode",
                 "q=SELECT v FROM m", "-o", "copy")
        r.note_file("copy")


@PROGRAMS.add("proftpd", "curl", "openssl", root=True, min_bytes=100_000,
              not_only="a session makes its connection its standard input")
def proftpd(r):
    """proftpd has a process for each session.  The client or the server makes the data connections."""
    r.data("big", 5 * MB)
    users = r.text("users", "")
    r.prepare("bash", "-c",
           f"echo 'u:{'$1$x$'}'\"$(openssl passwd -1 -salt x p | cut -d'$' -f4)\":0:0::{r.directory}:/bin/sh >users")
    os.chmod(users, 0o600)
    os.chmod(r.directory, 0o755)
    conf = r.text("conf", f"""
ServerType standalone
DefaultAddress 127.0.0.1
Port {r.port}
User root
Group root
AuthUserFile {users}
AuthOrder mod_auth_file.c
RootLogin on
RequireValidShell off
WtmpLog off
PidFile {r.path('pid')}
ScoreboardFile {r.path('board')}
DelayEngine off
UseReverseDNS off
AllowOverwrite on
SystemLog {r.path('log')}
TransferLog none
""")
    with r.server("proftpd", "-n", "-c", conf, keep=None):
        at = f"ftp://u:p@127.0.0.1:{r.port}/{r.directory}"
        for i, more in enumerate(((), ("-P", "127.0.0.1"), ("--disable-epsv",))):
            r.client("curl", "-sS", *more, f"{at}/big", "-o", f"copy{i}")
            r.note_file(f"copy{i}")
            r.client("curl", "-sS", *more, "-T", "big", f"{at}/sent{i}")
            r.note_file(f"sent{i}")
        r.client("curl", "-sS", "-r", "100-199", f"{at}/big", "-o", "part")
        r.note_file("part")


@PROGRAMS.add("postfix", "swaks", root=True, min_bytes=10_000)
def postfix(r):
    """One process waits for connections, and long-lived processes serve them in turn."""
    owner = pwd.getpwnam("postfix")
    for name in ("conf", "queue", "queue/pid", "data", *(f"queue/{name}" for name in (
            "active", "bounce", "corrupt", "defer", "deferred", "flush", "hold", "incoming", "maildrop", "private",
                                                                                      "public", "trace"))):
        os.mkdir(r.path(name))
        if name not in ("conf", "queue", "queue/pid"):
            os.chown(r.path(name), owner.pw_uid, owner.pw_gid)
    os.chmod(r.directory, 0o755)
    r.text("conf/main.cf", f"""
compatibility_level = 3.6
queue_directory = {r.path('queue')}
data_directory = {r.path('data')}
inet_interfaces = 127.0.0.1
inet_protocols = ipv4
maillog_file = /dev/stdout
maillog_file_prefixes = /dev/stdout, /var
myhostname = x.y
mydestination = x.y
mynetworks = 127.0.0.0/8
local_recipient_maps =
import_environment = MAIL_CONFIG LD_PRELOAD VERBENA_SOCKETS VERBENA_SOCKETS_EARLY
export_environment = MAIL_CONFIG LD_PRELOAD VERBENA_SOCKETS VERBENA_SOCKETS_EARLY
mailbox_command = /bin/cat >>{r.path('box')}
default_transport = discard:
local_transport = discard:
message_size_limit = 20000000
""")
    r.text("conf/master.cf", f"""
127.0.0.1:{r.port} inet n - n - 4 smtpd
pickup unix n - n 60 1 pickup
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
anvil unix - - n - 1 anvil
discard unix - - n - - discard
postlog unix-dgram n - n - 1 postlogd
""")
    letter = r.text("letter", "Subject: x\r\n\r\n" + "line of a letter\r\n" * 30000)
    env = os.environ | {"MAIL_CONFIG": r.path("conf")}
    with r.server("/usr/lib/postfix/sbin/master", "-c", r.path("conf"), "-d", env=env, keep=None):
        at = ("swaks", "--server", f"127.0.0.1:{r.port}", "--from", "a@x.y", "--helo", "c", "--hide-all")
        for i in range(3):
            r.client(*at, "--to", "b@x.y", "--data", f"@{letter}")
        r.client("swaks", "--server", f"127.0.0.1:{r.port}", "--from", "a@x.y", "--to", "b@x.y,c@x.y,d@x.y", "--helo",
                 "c", "--body", "x" * 9000,
                 "--pipeline", keep="Bye|End data|rror")


@PROGRAMS.add("icecast2", "curl", "python3", root=True, min_bytes=100_000)
def icecast(r):
    """One source sends a stream, which several clients receive at the same time."""
    conf = r.text("conf", f"""<icecast>
<limits><clients>20</clients><sources>2</sources><burst-size>0</burst-size></limits>
<authentication><source-password>p</source-password><admin-password>p</admin-password></authentication>
<hostname>x</hostname><listen-socket><port>{r.port}</port><bind-address>127.0.0.1</bind-address></listen-socket>
<paths><basedir>/usr/share/icecast2</basedir><logdir>{r.directory}</logdir><webroot>/usr/share/icecast2/web</webroot>
<adminroot>/usr/share/icecast2/admin</adminroot></paths>
<security><chroot>0</chroot><changeowner><user>nobody</user><group>nogroup</group></changeowner></security>
</icecast>""")
    client = r.text("radio.py", """
import socket, sys, threading, time
at = ('127.0.0.1', int(sys.argv[1]))
source = socket.create_connection(at)
source.sendall(b'PUT /a.ogg HTTP/1.1\\r\\nAuthorization: Basic c291cmNlOnA=\\r\\nContent-Type: audio/mpeg\\r\\n\\r\\n')
print(source.recv(1000).split(b'\\r\\n')[0])
got, ready = {}, threading.Barrier(6)
def listen(i):
    for k in range(200):
        s = socket.create_connection(at); f = s.makefile('rb')
        s.sendall(b'GET /a.ogg HTTP/1.0\\r\\n\\r\\n')
        if b' 200 ' in f.readline(): break
        s.close(); time.sleep(0.05)
    while f.readline() != b'\\r\\n': pass
    ready.wait()
    while True:
        data = f.read(8000)
        if b'end' in data or not data: break
        got[i] = got.get(i, True) and set(data) <= set(b'x')
    s.close()
all = [threading.Thread(target=listen, args=(i,)) for i in range(5)]
for t in all: t.start()
ready.wait()
for i in range(300): source.sendall(b'x' * 8000)
while any(t.is_alive() for t in all): source.sendall(b'end' * 100); time.sleep(0.01)
print(sorted(got.items()))
""")
    with r.server("icecast2", "-c", conf, keep=None):
        r.client("python3", client, r.port)
        r.client("curl", "-sS", "-i", f"http://127.0.0.1:{r.port}/none", keep="HTTP")
