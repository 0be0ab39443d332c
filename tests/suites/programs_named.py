"""Runs well-known programs under `verbena run --sockets`, from easy to hard."""
import glob
import os
import signal
import subprocess

import ways
from programs import Programs, is_listening, until_true

PROGRAMS = Programs()
PG = next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin"))), "/usr/lib/postgresql")
MB = 1_000_000


@PROGRAMS.add("sockperf", min_bytes=MB)
def sockperf(r):
    # The server does not end by itself, so SIGINT ends it.
    with r.server("sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", r.port, keep=None, stop=signal.SIGINT):
        for words in (("ping-pong", "-m", "64"), ("throughput", "-m", "16384"), ("under-load", "--mps", "2000")):
            r.client("sockperf", *words, "--tcp", "-i", "127.0.0.1", "-p", r.port, "-t", "1",
                     keep="rror|dropped|Total run|Warm")


@PROGRAMS.add("nc", quick=True)
def nc(r):
    big = r.data("big", 5 * MB)
    with open(big, "rb") as file, r.server("nc", "-l", "127.0.0.1", r.port, keep=None, stop=None,
                                           ready=lambda: is_listening(r.port)):
        r.client("nc", "-N", "127.0.0.1", r.port, stdin=file)
    r.note_file("nc.1.log")


def certificate(r):
    r.prepare("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key.pem", "-out", "cert.pem",
           "-days", "2", "-subj", "/CN=localhost")
    return r.path("cert.pem"), r.path("key.pem")


@PROGRAMS.add("openssl", "curl", min_bytes=100_000, quick=True)
def openssl(r):
    cert, key = certificate(r)
    r.data("big", 3 * MB)
    with r.server("openssl", "s_server", "-accept", r.port, "-cert", cert, "-key", key, "-WWW", "-quiet", keep=None):
        output = r.client("openssl", "s_client", "-connect", f"127.0.0.1:{r.port}", "-quiet", "-ign_eof", "-CAfile", cert,
                        input=b"GET /big HTTP/1.0\r\n\r\n", keep=None)
        r.note("bytes", len(output) > 2 * MB)
        r.client("curl", "-sS", "--cacert", cert, f"https://localhost:{r.port}/big", "-o", "copy", "--http0.9")
        r.note_file("copy")


@PROGRAMS.add("curl", "python3", min_bytes=MB, quick=True)
def curl_python_http(r):
    r.data("big", 5 * MB)
    with r.server("python3", "-m", "http.server", r.port, "--bind", "127.0.0.1"):
        url = f"http://127.0.0.1:{r.port}"
        r.client("curl", "-sS", f"{url}/big", "-o", "copy")
        r.note_file("copy")
        r.client("curl", "-sS", "-i", f"{url}/none", f"{url}/cert", keep="HTTP|Error", exact=True)
        r.client("curl", "--no-progress-meter", "-Z", *[word for i in range(8) for word in (f"{url}/big", "-o", f"copy{i}")])
        for i in range(8):
            r.note_file(f"copy{i}")


@PROGRAMS.add("iperf3", min_bytes=MB)
def iperf3(r):
    with r.server("iperf3", "-s", "-p", r.port, keep="rror|refused|unable"):
        for words in ((), ("-R",), ("-P", "8"), ("--bidir",), ("-Z",), ("-w", "1M"), ("-b", "1G"), ("-n", "20M", "-l", "1"
                       "000"), ("-P", "4", "-R", "-Z"), ("-O", "1"), ("-C", "reno"), ("-M", "1000"), ("-S", "8"), ("-J",)):
            r.client("iperf3", "-c", "127.0.0.1", "-p", r.port, *(() if "-n" in words else ("-t", "1")), *words,
                     keep="iperf Done|rror|connected to")
        # Interrupt a client.  The server must still serve the next client.
        r.client("timeout", "-s", "INT", "0.5", "iperf3", "-c", "127.0.0.1", "-p", r.port, "-t", "30", keep="iperf3:")
        r.client("iperf3", "-c", "127.0.0.1", "-p", r.port, "-t", "1", keep="iperf|rror")
    with r.server("iperf3", "-s", "-p", r.port, "-1", keep="rror|refused|unable", stop=None):
        r.client("iperf3", "-6", "-c", "::1", "-p", r.port, "-t", "1", keep="iperf|rror|connected")


@PROGRAMS.add("qperf", min_bytes=MB)
def qperf(r):
    with r.server("qperf", "-lp", r.port):
        r.client("qperf", "-lp", r.port, "127.0.0.1", "-t", "1", "tcp_bw", "tcp_lat", "conf", keep="^tcp|rror|fail")


def redis_cli(r, *words, port=None, **options):
    return r.client("redis-cli", "-p", port or r.port, *words, **options)


@PROGRAMS.add("redis-server", "redis-benchmark", min_bytes=MB)
def redis(r):
    common = ("--dir", r.directory, "--appendonly", "no", "--bind", "127.0.0.1", "--daemonize", "no")
    replica = r.port + 1
    with r.server("redis-server", "--port", r.port, *common, "--save", "1", "1", "--dbfilename", "a.rdb", "--io-threads",
                  "2", "--repl-diskless-sync-delay", "0", keep="WARNING.*(fail|err)"):
        for words in (("-c", "50"), ("-c", "50", "-P", "16"), ("-c", "8", "-d", "20000", "--threads", "2")):
            r.client("redis-benchmark", "-p", r.port, "-q", "-t", "set,get,lpush,mset", "-n", "4000", "-r", "1000", *words,
                     keep=r"requests per second, |rror")
        redis_cli(r, "bgsave", keep=None)
        with r.server("redis-server", "--port", replica, *common, "--save", "", "--dbfilename", "b.rdb", "--replicaof",
                      "127.0.0.1", r.port, port=replica, keep="WARNING.*(fail|err)"):
            redis_cli(r, "eval", "for i=1,20000 do redis.call('set', 'k'..i, string.rep('x', 100)) end return 1", "0")
            redis_cli(r, "wait", "1", "20000")
            redis_cli(r, "eval", "return redis.call('get', 'k20000')", "0", port=replica)
            digests = [redis_cli(r, "debug", "digest", port=port, keep=None).strip() for port in (r.port, replica)]
            r.note("the replica is the same", digests[0] == digests[1] or digests)
            redis_cli(r, "--pipe", input=b"SET a 1\r\n" * 50000, exact=True)
            redis_cli(r, "shutdown", "nosave", port=replica)
        redis_cli(r, "info", "clients", keep="connected_clients|blocked")


@PROGRAMS.add("memcached", "memcslap", "memccp", "memccat", min_bytes=MB, root=True)
def memcached(r):
    name = os.path.basename(r.data("big", 900_000))
    with r.server("memcached", "-p", r.port, "-l", "127.0.0.1", "-u", "nobody", "-U", "0", "-t", "4"):
        servers = f"--servers=127.0.0.1:{r.port}"
        r.client("memccp", servers, name)
        r.client("memccat", servers, f"--file={r.path('copy')}", name)
        r.note_file("copy")
        for words in ((), ("--binary",), ("--non-blocking",), ("--tcp-nodelay", "--test=get", "--initial-load=1000")):
            r.client("memcslap", servers, "--concurrency=8", "--execute-number=2000", *words)


def nginx_conf(r, *more):
    # All processes of nginx write their errors to a file.
    return r.text("nginx.conf", f"""
        daemon off; user www-data; worker_processes 2; pid {r.path('pid')}; error_log {r.path('errors')} warn;
        events {{ worker_connections 512; }}
        http {{ access_log off; client_body_temp_path {r.directory}; proxy_temp_path {r.directory};
            fastcgi_temp_path {r.directory}; uwsgi_temp_path {r.directory}; scgi_temp_path {r.directory};
            server {{ listen 127.0.0.1:{r.port} reuseport; root {r.directory}; sendfile on; tcp_nopush on;
                location /upper/ {{ proxy_pass http://127.0.0.1:{r.port}/; proxy_buffering off; }} }}
            {' '.join(more)} }}""")


@PROGRAMS.add("nginx", "wrk", "ab", "curl", root=True, min_bytes=MB)
def nginx(r):
    r.data("small", 612)
    r.data("big", MB)
    conf = nginx_conf(r)
    url = f"http://127.0.0.1:{r.port}"
    with r.server("nginx", "-p", r.directory, "-c", conf, "-e", r.path("errors"), stop=signal.SIGQUIT):
        for name in ("small", "big"):
            r.client("wrk", "-t2", "-c50", "-d1", f"{url}/{name}", keep="Socket errors|Non-2xx|threads and")
            r.client("ab", "-q", "-k", "-c", "20", "-n", "1000", f"{url}/{name}", keep="Failed|Non-2xx|Complete|Length",
                     exact=True)
        r.client("ab", "-q", "-c", "20", "-n", "2000", f"{url}/small", keep="Failed|Non-2xx|Complete|Length",
                 exact=True)
        # Reload nginx under load.  Old workers end when their connections end.  Not exact: some requests fail by TCP, too.
        r.client("bash", "-c", f"for i in 1 2 3; do sleep 0.3; kill -HUP $(cat {r.path('pid')}); done & "
                 f"ab -q -k -c 20 -n 20000 {url}/small; wait", keep="Failed|Non-2xx|Complete")
        r.client("curl", "-sS", f"{url}/big", "-o", "copy")
        r.note_file("copy")
    r.note("errors", open(r.path("errors")).read().count("\n"))


@PROGRAMS.add("nginx", "wrk", "curl", root=True, min_bytes=MB,
              not_only="a worker that waits for the ring of a connection to itself cannot accept it")
def nginx_proxy(r):
    """The workers of nginx are their own upstream servers."""
    r.data("big", MB)
    conf = nginx_conf(r)
    with r.server("nginx", "-p", r.directory, "-c", conf, "-e", r.path("errors"), stop=signal.SIGQUIT):
        url = f"http://127.0.0.1:{r.port}/upper/big"
        r.client("wrk", "-t2", "-c50", "-d1", url, keep="Non-2xx|threads and")
        r.client("curl", "-sS", url, "-o", "copy")
        r.note_file("copy")
    r.note("errors", open(r.path("errors")).read().count("error"))


ECHO = """
import asyncio, sys
async def echo(reader, writer):
    data = await reader.read()
    writer.write(data); await writer.drain(); writer.close()
async def serve():
    async with await asyncio.start_server(echo, '127.0.0.1', int(sys.argv[2])) as server: await server.serve_forever()
async def call(i):
    reader, writer = await asyncio.open_connection('127.0.0.1', int(sys.argv[2]))
    sent = bytes([i]) * 1000000
    writer.write(sent); writer.write_eof()
    return await reader.read() == sent
async def calls(): print(await asyncio.gather(*map(call, range(10))))
asyncio.run(serve() if sys.argv[1] == 'serve' else calls())
"""


@PROGRAMS.add("python3", quick=True)
def python_asyncio(r):
    echo = r.text("echo.py", ECHO)
    with r.server("python3", echo, "serve", r.port, keep=None):
        r.client("python3", echo, "call", r.port)


NODE_SERVER = """
const http = require('http'), big = Buffer.alloc(1000000, 'x');
http.createServer((q, a) => { let n = 0; q.on('data', d => n += d.length); q.on('end', () => {
  a.setHeader('n', n); a.end(big); }); }).listen(+process.argv[2], '127.0.0.1');
process.on('SIGTERM', () => process.exit(0));
"""
NODE_CLIENT = """
const http = require('http'), agent = new http.Agent({keepAlive: true, maxSockets: 2});
let left = 20;
for (let i = 0; i < 20; i++) { const q = http.request({port: +process.argv[2], host: '127.0.0.1', agent, method: 'POST'},
  a => { let n = 0; a.on('data', d => n += d.length); a.on('end', () => { console.log(a.headers.n, n);
    if (--left == 0) agent.destroy(); }); }); q.end(Buffer.alloc(i * 10000)); }
"""


@PROGRAMS.add("node", min_bytes=MB)
def node(r):
    server, client = r.text("server.js", NODE_SERVER), r.text("client.js", NODE_CLIENT)
    with r.server("node", server, r.port):
        r.client("node", client, r.port, exact=True)


@PROGRAMS.add(f"{PG}/initdb", f"{PG}/pgbench", "psql", "setpriv", root=True, min_bytes=MB)
def postgres(r):
    # PostgreSQL refuses to run as root.
    user = ("setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups")
    r.prepare(*user, f"{PG}/initdb", "-D", "db", "-A", "trust", "-U", "postgres", "--no-sync")
    with r.server(*user, f"{PG}/postgres", "-D", r.path("db"), "-p", r.port, "-c", "listen_addresses=127.0.0.1", "-c",
                  "unix_socket_directories=", "-c", "fsync=off", "-c", "log_min_messages=fatal", stop=signal.SIGINT,
                  keep="PANIC"):
        at = ("-h", "127.0.0.1", "-p", r.port, "-U", "postgres")

        def accepts_clients():  # the server also listens while it starts, but then rejects clients
            words = map(str, (f"{PG}/pg_isready", "-q", *at))
            return subprocess.run(ways.command(r.client_way, words)).returncode == 0

        until_true(accepts_clients, 20)
        r.client(f"{PG}/pgbench", *at, "-i", "-s", "1", "-q", "postgres", keep="rror|vacuum|creating")
        r.client("psql", *at, "-c", r"\copy pgbench_accounts to accounts", "-c", "create table b (like pgbench_accounts)",
                 "-c", r"\copy b from accounts", "-c", "select count(*), sum(aid) from b", "postgres", exact=True)
        r.note_file("accounts")
        for words in (("-S", "-c", "8"), ("-S", "-c", "8", "-j", "2", "-M", "prepared"), ("-S", "-C", "-c", "2"), ("-c", "4")):
            r.client(f"{PG}/pgbench", *at, "-n", "-t", "200", *words, "postgres", keep="rror|processed|clients|failed",
                     exact=True)
        # Kill a backend.  Its client sees the end of the connection, and the server restarts.
        r.client("bash", "-c", f"psql -h 127.0.0.1 -p {r.port} -U postgres -Atc 'select pg_backend_pid(), pg_sleep(30)' "
                 "postgres & c=$!; until b=$(pgrep -f '[p]ostgres: postgres postgres.*SELECT'); do sleep 0.05; done; kill -9 $b; wait $c; echo $?",
                 keep="server closed|rror|N")
        until_true(accepts_clients, 20)


@PROGRAMS.add("socat", min_bytes=100_000, quick=True)
def socat(r):
    r.data("big", 5 * MB)
    with r.server("socat", f"TCP-LISTEN:{r.port},reuseaddr,fork", "EXEC:cat"):
        r.client("bash", "-c", f"socat -t 20 - TCP:127.0.0.1:{r.port} <big >copy")
        r.note_file("copy")
    with r.server("socat", f"TCP-LISTEN:{r.port},reuseaddr", f"OPEN:{r.path('got')},creat,trunc", stop=None):
        r.client("socat", "-u", f"OPEN:{r.path('big')}", f"TCP:127.0.0.1:{r.port}")
    r.note_file("got")


@PROGRAMS.add("socat", "bash", quick=True, not_only="bash writes by stdio, and socat's SYSTEM keeps a copy of the descriptor")
def bash_dev_tcp(r):
    r.data("big", 5 * MB)
    with r.server("socat", f"TCP-LISTEN:{r.port},reuseaddr,fork", "EXEC:cat"):
        r.client("bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{r.port}; printf 'hi\\n' >&3; head -c3 <&3; "
                 "for i in {1..500}; do echo line $i >&3; read -r line <&3; [ \"$line\" = \"line $i\" ] || echo bad; done")
    with r.server("socat", f"TCP-LISTEN:{r.port},reuseaddr,fork", "SYSTEM:wc -c; echo done"):
        r.client("bash", "-c", f"socat -t 20 - TCP:127.0.0.1:{r.port},shut-down <big", exact=True)


SSH_OPTIONS = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-F", "none")


@PROGRAMS.add("sshd", "ssh", "scp", "sftp", "git", "ssh-keygen", "curl", root=True, not_only="sshd filters system calls")
def ssh(r):
    r.data("big", 5 * MB)
    for name in ("host", "user"):
        r.prepare("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name)
    os.makedirs("/run/sshd", exist_ok=True)
    conf = r.text("sshd_config", f"""
Port {r.port}
ListenAddress 127.0.0.1
HostKey {r.path('host')}
PidFile none
AuthorizedKeysFile {r.path('user.pub')}
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
Subsystem sftp internal-sftp
""")
    options = (*SSH_OPTIONS, "-i", r.path("user"))
    with r.server("/usr/sbin/sshd", "-D", "-e", "-f", conf, keep="rror|fatal"):
        at = (*options, "-p", r.port, "root@127.0.0.1")
        r.client("ssh", *at, "echo hi; exit 3")
        r.client("bash", "-c", f"ssh {' '.join(map(str, at))} cat <big >copy")
        r.note_file("copy")
        r.client("scp", *options, "-P", r.port, f"root@127.0.0.1:{r.path('big')}", r.path("copy2"))
        r.note_file("copy2")
        r.client("sftp", *options, "-P", r.port, "-b", "-", "root@127.0.0.1", input=f"get {r.path('big')} copy3\n".encode())
        r.note_file("copy3")
        r.prepare("git", "init", "-q", "--bare", "repo.git")
        r.prepare("git", "init", "-q", "work")
        r.prepare("git", "-C", "work", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "x",
               env=os.environ | {"GIT_COMMITTER_DATE": "@1 +0000", "GIT_AUTHOR_DATE": "@1 +0000"})
        ssh_command = os.environ | {"GIT_SSH_COMMAND": " ".join(map(str, ("ssh", *options, "-p", r.port)))}
        r.client("git", "-C", "work", "push", "-q", f"root@127.0.0.1:{r.path('repo.git')}", "HEAD:main", env=ssh_command)
        r.client("git", "clone", "-q", "-b", "main", f"root@127.0.0.1:{r.path('repo.git')}", "clone", env=ssh_command)
        r.client("git", "-C", "clone", "log", "--oneline")
        # Local and remote port forwarding carry a web page.
        with r.server("python3", "-m", "http.server", r.port + 3, "--bind", "127.0.0.1", port=r.port + 3):
            with r.server("ssh", *options, "-p", r.port, "-N", "-o", "ExitOnForwardFailure=yes", "-L",
                          f"{r.port + 1}:127.0.0.1:{r.port + 3}", "-R", f"{r.port + 2}:127.0.0.1:{r.port + 3}",
                          "root@127.0.0.1", ready=lambda: is_listening(r.port + 1) and is_listening(r.port + 2),
                          way=r.client_way):
                for port in (r.port + 1, r.port + 2):
                    r.client("curl", "-sS", f"http://127.0.0.1:{port}/big", "-o", "copy4")
                    r.note_file("copy4")
