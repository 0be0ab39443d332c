"""Runs measuring tools, virtual machines and other programs under `verbena run --sockets`."""
import os
import signal

from programs import Programs, is_listening
from programs_named import MB

PROGRAMS = Programs()


@PROGRAMS.add("iperf")
def iperf2(r):
    with r.server("iperf", "-s", "-p", r.port, "-B", "127.0.0.1", keep=None, stop=signal.SIGKILL):
        for words in ((), ("-P", "4"), ("-l", "1000")):
            r.client("iperf", "-c", "127.0.0.1", "-p", r.port, "-t", "1", *words, keep="rror|failed|refused")


@PROGRAMS.add("nuttcp", not_only="nuttcp makes its control connection its standard input")
def nuttcp(r):
    with r.server("nuttcp", "-S", "--nofork", "-P", r.port, keep=None, stop=signal.SIGKILL):
        for words in (("-t",), ("-r",), ("-F", "-t")):
            r.client("nuttcp", *words, "-P", r.port, "-p", r.port + 1, "-T", "1", "127.0.0.1", keep="rror|fail|refused")


@PROGRAMS.add("NPtcp")
def netpipe(r):
    with r.server("NPtcp", "-u", "5000", "-n", "50", port=5002, keep="rror|mismatch", stop=None):
        r.client("NPtcp", "-h", "127.0.0.1", "-u", "5000", "-n", "50", keep="rror|mismatch")


@PROGRAMS.add("stress-ng")
def stress_ng(r):
    """stress-ng makes socket calls of all kinds, with options that few programs use."""
    for words in (("--sock", "4", "--sock-ops", "3000", "--verify"), ("--sock", "2", "--sock-ops", "500", "--sock-type",
                  "stream", "--sock-opts", "sendmmsg"), ("--sock", "2", "--sock-ops", "500", "--sock-opts", "sendmsg"),
                  ("--sockmany", "1", "--sockmany-ops", "2000"), ("--sockabuse", "1", "--sockabuse-ops", "500"),
                  ("--epoll", "2", "--epoll-ops", "2000"), ("--sendfile", "1", "--sendfile-ops", "500")):
        r.client("stress-ng", *words, "--timeout", "20", keep="fail:|successful|abnormal")


@PROGRAMS.add("gunicorn", "curl", "ab")
def gunicorn(r):
    r.text("app.py", "def app(environ, start):\n  n = len(environ['wsgi.input'].read())\n"
           "  start('200 OK', [('Content-Type', 'text/plain')])\n  return [b'%d ' % n, b'x' * 1000000]\n")
    for words in ((), ("-k", "gthread", "--threads", "4")):
        with r.server("/usr/bin/gunicorn", "-w", "3", *words, "-b", f"127.0.0.1:{r.port}", "app:app", keep="rror"):
            r.client("curl", "-sS", "--data-binary", "@app.py", f"http://127.0.0.1:{r.port}/", "-o", "copy")
            r.note_file("copy")
            r.client("ab", "-q", "-c", "10", "-n", "200", f"http://127.0.0.1:{r.port}/", keep="Failed|Non-2xx|Complete",
                     exact=True)


@PROGRAMS.add("uwsgi", "curl", "ab")
def uwsgi(r):
    r.text("app.py", "def application(environ, start):\n  start('200 OK', [])\n  return [b'x' * 1000000]\n")
    with r.server("uwsgi", "--plugin", "python3,http", "--http", f"127.0.0.1:{r.port}", "--wsgi-file", "app.py", "--processes", "2",
                  "--master", "--die-on-term", keep=None):
        r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/", "-o", "copy")
        r.note_file("copy")
        r.client("ab", "-q", "-c", "10", "-n", "200", f"http://127.0.0.1:{r.port}/", keep="Failed|Non-2xx|Complete",
                 exact=True)


@PROGRAMS.add("wget", "aria2c", "lighttpd")
def downloaders(r):
    r.data("big", 20 * MB)
    conf = r.text("lighttpd.conf", f'server.document-root = "{r.directory}"\nserver.port = {r.port}\nserver.bind = "127.0.0.1"\n')
    with r.server("lighttpd", "-D", "-f", conf, keep="rror"):
        r.client("wget", "-q", f"http://127.0.0.1:{r.port}/big", "-O", "copy2")
        r.note_file("copy2")
        r.client("aria2c", "-q", "-x", "4", "-s", "4", "-k", "1M", f"http://127.0.0.1:{r.port}/big", "-o", "copy3")
        r.note_file("copy3")


@PROGRAMS.add("Xvfb", "xdpyinfo", "xprop")
def x_server(r):
    with r.server("Xvfb", ":9", "-listen", "tcp", "-nolisten", "unix", "-nolisten", "local", "-ac", port=6009, keep="rror|atal",
                  stop=signal.SIGTERM):
        r.client("xdpyinfo", "-display", "127.0.0.1:9", keep=None)
        r.client("xprop", "-display", "127.0.0.1:9", "-root", "-set", "A", "x" * 50000)
        r.client("xprop", "-display", "127.0.0.1:9", "-root", "A")


@PROGRAMS.add("qemu-system-x86_64", "python3")
def qemu_migration(r):
    """QEMU migrates the memory of a virtual machine to another process."""
    common = ("qemu-system-x86_64", "-M", "q35,accel=tcg", "-m", "128", "-nodefaults", "-display", "none", "-S")
    script = r.text("move.py", f"""
import json, socket, time
def talk(port):
    s = socket.create_connection(('127.0.0.1', port)); f = s.makefile('rb'); f.readline()
    def ask(name, **words):
        s.sendall(json.dumps(dict(execute=name, arguments=words)).encode())
        while 'return' not in (said := json.loads(f.readline())):
            if 'error' in said: return said
        return said['return']
    ask('qmp_capabilities')
    return ask
one, two = talk({r.port}), talk({r.port + 1})
one('migrate', uri='tcp:127.0.0.1:{r.port + 2}')
while (state := one('query-migrate').get('status')) in ('setup', 'active', 'device', None): time.sleep(0.05)
print(state, two('query-status')['status'])
one('quit'); two('quit')
""")
    with r.server(*common, "-qmp", f"tcp:127.0.0.1:{r.port},server=on,wait=off", stop=None):
        with r.server(*common, "-qmp", f"tcp:127.0.0.1:{r.port + 1},server=on,wait=off", "-incoming", f"tcp:127.0.0.1:{r.port + 2}",
                      port=r.port + 1, way=r.client_way, stop=None):
            r.client("python3", script)


@PROGRAMS.add("inetd", "nc", root=True, not_only="the next program has the connection as its standard input")
def inetd(r):
    r.data("big", 3 * MB)
    conf = r.text("inetd.conf", f"127.0.0.1:{r.port} stream tcp nowait root /bin/cat cat\n"
                  f"127.0.0.1:{r.port + 1} stream tcp nowait root internal\n")
    with r.server("inetd", "-d", conf, keep=None):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big >copy")
        r.note_file("copy")


@PROGRAMS.add("tgtd", "tgtadm", "iscsi-ls", "iscsi-inq", root=True)
def iscsi(r):
    r.data("disk", 8 * 1024 * 1024)
    with r.server("tgtd", "-f", "--iscsi", f"portal=127.0.0.1:{r.port}", keep=None, stop=signal.SIGKILL):
        admin = ("tgtadm", "--lld", "iscsi", "--op")
        r.prepare(*admin, "new", "--mode", "target", "--tid", "1", "-T", "iqn.x:d")
        r.prepare(*admin, "new", "--mode", "logicalunit", "--tid", "1", "--lun", "1", "-b", r.path("disk"))
        r.prepare(*admin, "bind", "--mode", "target", "--tid", "1", "-I", "ALL")
        r.client("iscsi-ls", "-s", f"iscsi://127.0.0.1:{r.port}")
        r.client("iscsi-inq", f"iscsi://127.0.0.1:{r.port}/iqn.x:d/1")
