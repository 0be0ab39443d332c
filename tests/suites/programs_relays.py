"""Runs relays, and clients that make load, under `verbena run --sockets`."""
import os
import signal

from programs import Programs
from programs_named import MB, certificate, nginx_conf

PROGRAMS = Programs()


def web_server(r, **options):
    """Runs Python's web server for the round's directory, on the port after the relay's port."""
    return r.server("python3", "-m", "http.server", r.port + 1, "--bind", "127.0.0.1", port=r.port + 1, keep=None,
                    **options)


def fetch_files(r):
    """Fetches a large file through the relay nine times: three times in turn, and then six times in parallel."""
    url = f"http://127.0.0.1:{r.port}"
    for i in range(3):
        r.client("curl", "-sS", f"{url}/big", "-o", f"copy{i}")
        r.note_file(f"copy{i}")
    r.client("curl", "--no-progress-meter", "-Z", *[word for i in range(6)
                                                    for word in (f"{url}/big", "-o", f"many{i}")])
    for i in range(6):
        r.note_file(f"many{i}")


@PROGRAMS.add("pen", "curl", "python3", min_bytes=MB)
def pen(r):
    r.data("big", 3 * MB)
    with web_server(r), r.server("pen", "-f", "-r", f"127.0.0.1:{r.port}", f"127.0.0.1:{r.port + 1}", keep=None):
        fetch_files(r)


@PROGRAMS.add("sslh", "sslh-select", "curl", "python3", "nc", root=True, min_bytes=100_000)
def sslh(r):
    """sslh reads a connection's first bytes, and passes them to the server for their protocol."""
    r.data("big", 3 * MB)
    for kind in ("sslh-select", "sslh"):
        with web_server(r), r.server(kind, "-f", "-n", "-u", "nobody", "-p", f"127.0.0.1:{r.port}", "--http",
                              f"127.0.0.1:{r.port + 1}", "--pidfile",
                              r.path("pid"), keep=None, stop=signal.SIGKILL):
            fetch_files(r)


@PROGRAMS.add("microsocks", "curl", "python3", min_bytes=MB)
def microsocks(r):
    """microsocks is a SOCKS server with one thread for each connection."""
    r.data("big", 3 * MB)
    with web_server(r), r.server("microsocks", "-i", "127.0.0.1", "-p", r.port, keep="rror", stop=signal.SIGKILL):
        for i in range(4):
            r.client("curl", "-sS", "-x", f"socks5h://127.0.0.1:{r.port}", f"http://127.0.0.1:{r.port + 1}/big", "-o",
                     f"copy{i}")
            r.note_file(f"copy{i}")


@PROGRAMS.add("privoxy", "curl", "python3", root=True)
def privoxy(r):
    r.data("big", 3 * MB)
    conf = r.text("conf", f"listen-address 127.0.0.1:{r.port}\nlogdir {r.directory}\nconfdir /etc/privoxy\ntoggle 0\n")
    with web_server(r), r.server("privoxy", "--no-daemon", conf, keep=None):
        for i in range(3):
            r.client("curl", "-sS", "-x", f"http://127.0.0.1:{r.port}", f"http://127.0.0.1:{r.port + 1}/big", "-o",
                     f"copy{i}")
            r.note_file(f"copy{i}")


@PROGRAMS.add("siege", "nginx", root=True, min_bytes=100_000)
def siege(r):
    """siege has a thread for each simulated user."""
    r.data("small", 6120)
    r.data("big", MB // 2)
    conf = nginx_conf(r)
    options = r.text("siegerc",
                     "verbose = false\nshow-logfile = false\nlogging = false\njson_output = false\nparser = false\n")
    with r.server("nginx", "-p", r.directory, "-c", conf, "-e", r.path("errors"), stop=signal.SIGQUIT):
        for more in (("-b", "-c", "20", "-r", "20"), ("-b", "-c", "5", "-r", "10", "-H", "Connection: keep-alive")):
            for name in ("small", "big"):
                r.client("siege", "-R", options, *more, f"http://127.0.0.1:{r.port}/{name}",
                         keep="Transactions|Availability|Failed|Success", exact=True,
                         env=os.environ | {"HOME": str(r.directory)})


@PROGRAMS.add("hey", "nginx", root=True, not_only="Go does not use the C library")
def hey(r):
    """hey, which is written in Go, is the client of a server that has the library."""
    r.data("big", MB // 2)
    conf = nginx_conf(r)
    with r.server("nginx", "-p", r.directory, "-c", conf, "-e", r.path("errors"), stop=signal.SIGQUIT):
        r.client("hey", "-n", "500", "-c", "10", f"http://127.0.0.1:{r.port}/big", keep=r"\[\d+\] \d+ resp|rror",
                 exact=True)
        r.client("hey", "-n", "300", "-c", "10", "-m", "POST", "-d", "x" * 5000, f"http://127.0.0.1:{r.port}/none",
                 keep=r"\[\d+\] \d+ resp|rror", exact=True)


@PROGRAMS.add("caddy", "curl", "python3", "ab", not_only="Go does not use the C library")
def caddy(r):
    """Caddy, which is written in Go, relays between programs that have the library, and serves files."""
    r.data("big", 3 * MB)
    r.data("small", 500)
    conf = r.text("Caddyfile", f"""{{
  admin off
  auto_https off
}}
http://127.0.0.1:{r.port} {{
  handle /own/* {{
    root * {r.directory}
    uri strip_prefix /own
    file_server
  }}
  handle {{
    reverse_proxy 127.0.0.1:{r.port + 1}
  }}
}}
""")
    with web_server(r), r.server("caddy", "run", "--config", conf, "--adapter", "caddyfile", keep=None,
                          env=os.environ | {"HOME": str(r.directory), "XDG_DATA_HOME": str(r.directory)}):
        fetch_files(r)
        r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/own/big", "-o", "copy")
        r.note_file("copy")
        r.client("ab", "-q", "-k", "-c", "10", "-n", "200", f"http://127.0.0.1:{r.port}/own/small",
                 keep="Failed|Non-2xx|Complete", exact=True)


@PROGRAMS.add("nghttpx", "h2load", "nghttp", "nginx", "openssl", root=True, min_bytes=100_000)
def nghttp2(r):
    """nghttpx serves HTTP/2 with and without TLS by libev, and uses HTTP/1 to the web server."""
    cert, key = certificate(r)
    r.data("small", 6120)
    r.data("big", MB // 2)
    plain = r.port + 7
    conf = nginx_conf(r)
    with r.server("nginx", "-p", r.directory, "-c", conf, "-e", r.path("errors"), stop=signal.SIGQUIT), \
            r.server("nghttpx", "--conf=/dev/null", f"--frontend=127.0.0.1,{plain};no-tls",
                     f"--frontend=127.0.0.1,{plain + 1}", "-n", "2",
                     f"--backend=127.0.0.1,{r.port}", "--errorlog-file=nghttpx.log", key, cert, port=plain + 1,
                     keep=None):
        for url in (f"http://127.0.0.1:{plain}", f"https://127.0.0.1:{plain + 1}"):
            for name in ("small", "big"):
                r.client("h2load", "-n", "200", "-c", "8", "-m", "10", f"{url}/{name}", keep="^requests:|status codes",
                         exact=True)
            r.client("bash", "-c", f"nghttp --no-verify-peer {url}/big 2>&1 >copy | head -5")
            r.note_file("copy")


@PROGRAMS.add("aria2c", "nginx", root=True, min_bytes=MB)
def aria2(r):
    """aria2 fetches the parts of a file by several connections."""
    r.data("big", 8 * MB)
    conf = nginx_conf(r)
    with r.server("nginx", "-p", r.directory, "-c", conf, "-e", r.path("errors"), stop=signal.SIGQUIT):
        for i, events in enumerate(("epoll", "poll", "select")):
            r.client("aria2c", "-q", "--no-conf", f"--event-poll={events}", "-x", "8", "-s", "8", "-k", "1M", "-o",
                     f"copy{i}",
                     f"http://127.0.0.1:{r.port}/big")
            r.note_file(f"copy{i}")
