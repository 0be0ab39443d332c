"""Runs web servers and proxies under `verbena run --sockets`."""
import os
import signal

from programs import Programs
from programs_named import MB, certificate

PROGRAMS = Programs()


def web_checks(r, port, *, names=("big",), closes=True):
    """Fetches files in several ways from a web server that has "small" and "big"."""
    url = f"http://127.0.0.1:{port}"
    for name in names:
        r.client("curl", "-sS", f"{url}/{name}", "-o", "copy")
        r.note_file("copy")
    r.client("curl", "--no-progress-meter", "-Z", *[word for i in range(6) for word in (f"{url}/big", "-o", f"copy{i}")])
    for i in range(6):
        r.note_file(f"copy{i}")
    options = (("-k",), ()) if closes else (("-k",),)
    for option in options:
        r.client("ab", "-q", *option, "-c", "10", "-n", "500", f"{url}/small", keep="Failed|Non-2xx|Complete|Length",
                 exact=True)


@PROGRAMS.add("haproxy", "python3", "curl", "ab")
def haproxy(r):
    r.data("small", 500)
    r.data("big", 2 * MB)
    back = r.port + 1
    conf = r.text("haproxy.cfg", f"""
global
  maxconn 200
defaults
  timeout connect 5s
  timeout client 20s
  timeout server 20s
frontend http
  mode http
  bind 127.0.0.1:{r.port}
  default_backend web
frontend tcp
  mode tcp
  option splice-auto
  bind 127.0.0.1:{r.port + 2}
  default_backend raw
backend web
  mode http
  server one 127.0.0.1:{back} check inter 500
backend raw
  mode tcp
  option splice-auto
  server one 127.0.0.1:{back}
""")
    with r.server("python3", "-m", "http.server", back, "--bind", "127.0.0.1", port=back, keep=None):
        with r.server("haproxy", "-db", "-f", conf, keep="ALERT"):
            web_checks(r, r.port)
            web_checks(r, r.port + 2)
    # USR2 makes the master replace its workers.
    with r.server("python3", "-m", "http.server", back, "--bind", "127.0.0.1", port=back, keep=None):
        with r.server("haproxy", "-W", "-db", "-f", conf, keep="ALERT") as master:
            r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/big", "-o", "copy")
            master.send_signal(signal.SIGUSR2)
            # Not exact: the workers that end close connections, and then some requests fail by TCP, too.
            r.client("ab", "-q", "-k", "-c", "5", "-n", "1000", f"http://127.0.0.1:{r.port}/small", keep="Failed|Complete")


@PROGRAMS.add("lighttpd", "curl", "ab")
def lighttpd(r):
    r.data("small", 500)
    r.data("big", 2 * MB)
    r.text("hello.cgi", "#!/bin/sh\necho Content-Type: text/plain; echo; echo hello $REQUEST_METHOD; wc -c\n")
    conf = r.text("lighttpd.conf", f"""
server.document-root = "{r.directory}"
server.port = {r.port}
server.bind = "127.0.0.1"
server.modules = ("mod_cgi")
cgi.assign = (".cgi" => "/bin/sh")
""")
    with r.server("lighttpd", "-D", "-f", conf, keep="rror"):
        web_checks(r, r.port)
        url = f"http://127.0.0.1:{r.port}/hello.cgi"
        r.client("curl", "-sS", "--data-binary", "@big", url, exact=True)
        r.client("curl", "-sS", url, url, exact=True)


def apache_conf(r, model):
    return r.text("apache.conf", f"""
ServerRoot {r.directory}
ServerName localhost
User www-data
Group www-data
PidFile {r.path('pid')}
DefaultRuntimeDir {r.directory}
Listen 127.0.0.1:{r.port}
LoadModule mpm_{model}_module /usr/lib/apache2/modules/mod_mpm_{model}.so
LoadModule authz_core_module /usr/lib/apache2/modules/mod_authz_core.so
LoadModule cgi_module /usr/lib/apache2/modules/mod_cgi.so
LoadModule mime_module /usr/lib/apache2/modules/mod_mime.so
TypesConfig /dev/null
AddHandler cgi-script .cgi
EnableSendfile On
DocumentRoot {r.directory}
<Directory {r.directory}>
Options +ExecCGI
</Directory>
ErrorLog {r.path('errors')}
""")


@PROGRAMS.add("apache2", "ab", "curl", root=True)
def apache(r):
    r.data("small", 500)
    r.data("big", 2 * MB)
    os.chmod(r.text("hello.cgi", "#!/bin/sh\necho Content-Type: text/plain; echo; echo hello $REQUEST_METHOD; wc -c\n"), 0o755)
    for model in ("event", "prefork", "worker"):
        conf = apache_conf(r, model)
        with r.server("apache2", "-DFOREGROUND", "-f", conf, keep="rror"):
            web_checks(r, r.port)
            r.client("curl", "-sS", "--data-binary", "@big", f"http://127.0.0.1:{r.port}/hello.cgi", exact=True)
            os.kill(int(open(r.path("pid")).read()), signal.SIGUSR1)  # a graceful restart
            r.client("ab", "-q", "-k", "-c", "10", "-n", "500", f"http://127.0.0.1:{r.port}/small", keep="Non-2xx|Complete")


@PROGRAMS.add("nginx", "curl", "h2load")
def nginx_http2(r):
    cert, key = certificate(r)
    r.data("small", 500)
    r.data("big", 2 * MB)
    conf = r.text("nginx.conf", f"""
        daemon off; user root; worker_processes 1; pid {r.path('pid')}; error_log {r.path('errors')} warn;
        events {{ worker_connections 512; }}
        http {{ access_log off; client_body_temp_path {r.directory}; proxy_temp_path {r.directory};
            fastcgi_temp_path {r.directory}; uwsgi_temp_path {r.directory}; scgi_temp_path {r.directory};
            server {{ listen 127.0.0.1:{r.port} ssl http2; root {r.directory}; ssl_certificate {cert};
                ssl_certificate_key {key}; }} }}""")
    with r.server("nginx", "-p", r.directory, "-c", conf, "-e", r.path("errors"), stop=signal.SIGQUIT):
        r.client("curl", "-sS", "--http2", "--cacert", cert, f"https://localhost:{r.port}/big", "-o", "copy",
                 "-w", "%{http_version}\n")
        r.note_file("copy")
        r.client("h2load", "-n", "500", "-c", "10", "-m", "10", f"https://127.0.0.1:{r.port}/small",
                 keep="^requests|^status", exact=True)


@PROGRAMS.add("squid", "python3", "curl", root=True)
def squid(r):
    r.data("small", 500)
    r.data("big", 2 * MB)
    web = r.port + 1
    conf = r.text("squid.conf", f"""
http_port 127.0.0.1:{r.port}
http_access allow all
cache deny all
pid_filename {r.path('pid')}
cache_log {r.path('cache.log')}
access_log none
shutdown_lifetime 1 seconds
coredump_dir {r.directory}
""")
    with r.server("python3", "-m", "http.server", web, "--bind", "127.0.0.1", port=web, keep=None):
        with r.server("squid", "-N", "-f", conf, keep="FATAL"):
            proxy = ("-x", f"http://127.0.0.1:{r.port}")
            for name in ("small", "big"):
                r.client("curl", "-sS", *proxy, f"http://127.0.0.1:{web}/{name}", "-o", "copy")
                r.note_file("copy")
            r.client("curl", "-sS", *proxy, "-p", f"http://127.0.0.1:{web}/big", "-o", "copy")
            r.note_file("copy")


@PROGRAMS.add("varnishd", "python3", "curl", "ab", root=True)
def varnish(r):
    r.data("small", 500)
    r.data("big", 2 * MB)
    web = r.port + 1
    with r.server("python3", "-m", "http.server", web, "--bind", "127.0.0.1", port=web, keep=None):
        with r.server("varnishd", "-F", "-a", f"127.0.0.1:{r.port}", "-b", f"127.0.0.1:{web}", "-n", r.path("varnish"),
                      keep="Error|Panic", env=os.environ | {"TMPDIR": "/tmp"}):
            web_checks(r, r.port, names=("small", "big"))


@PROGRAMS.add("tinyproxy", "python3", "curl")
def tinyproxy(r):
    r.data("big", 2 * MB)
    web = r.port + 1
    conf = r.text("tinyproxy.conf", f"Port {r.port}\nListen 127.0.0.1\nTimeout 20\nMaxClients 20\nAllow 127.0.0.1\n")
    with r.server("python3", "-m", "http.server", web, "--bind", "127.0.0.1", port=web, keep=None):
        with r.server("tinyproxy", "-d", "-c", conf, keep="ERROR|CRITICAL"):
            for words in ((), ("-p",)):
                r.client("curl", "-sS", "-x", f"http://127.0.0.1:{r.port}", *words, f"http://127.0.0.1:{web}/big", "-o",
                         "copy")
                r.note_file("copy")


@PROGRAMS.add("h2o", "curl", "ab", root=True)
def h2o(r):
    r.data("small", 500)
    r.data("big", 2 * MB)
    conf = r.text("h2o.conf", f"""
user: root
num-threads: 2
listen:
  host: 127.0.0.1
  port: {r.port}
hosts:
  default:
    paths:
      /:
        file.dir: {r.directory}
""")
    with r.server("h2o", "-c", conf, keep="rror"):
        web_checks(r, r.port)


@PROGRAMS.add("stunnel4", "openssl", "python3", "curl")
def stunnel(r):
    cert, key = certificate(r)
    r.data("big", 2 * MB)
    web, inner = r.port + 1, r.port + 2
    common = f"foreground = yes\npid =\nsocket = l:TCP_NODELAY=1\n"
    server = r.text("server.conf", f"{common}[s]\naccept = 127.0.0.1:{inner}\nconnect = 127.0.0.1:{web}\n"
                    f"cert = {cert}\nkey = {key}\n")
    client = r.text("client.conf", f"{common}[c]\nclient = yes\naccept = 127.0.0.1:{r.port}\n"
                    f"connect = 127.0.0.1:{inner}\nCAfile = {cert}\nverifyPeer = yes\n")
    with r.server("python3", "-m", "http.server", web, "--bind", "127.0.0.1", port=web, keep=None):
        with r.server("stunnel4", server, port=inner, keep="LOG[N].*rror"):
            with r.server("stunnel4", client, keep="LOG[N].*rror"):
                for i in range(3):
                    r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/big", "-o", "copy")
                    r.note_file("copy")


@PROGRAMS.add("php", "curl", "ab")
def php(r):
    r.data("small", 500)
    r.data("big", 2 * MB)
    r.text("post.php", "<?php echo strlen(file_get_contents('php://input')), PHP_EOL;")
    # The clients use PHP's streams and its sockets.
    r.text("client.php", f"""<?php
        echo md5(file_get_contents('http://127.0.0.1:{r.port}/big')), PHP_EOL;
        $s = stream_socket_client('tcp://127.0.0.1:{r.port}');
        fwrite($s, "GET /small HTTP/1.0\\r\\n\\r\\n"); stream_set_blocking($s, false); $all = '';
        while (!feof($s)) {{ $in = [$s]; $o = $e = null; stream_select($in, $o, $e, 5); $all .= fread($s, 8192); }}
        echo strlen($all) > 500 ? 'good' : 'bad', PHP_EOL;""")
    with r.server("php", "-S", f"127.0.0.1:{r.port}", "-t", r.directory, keep=None,
                  env=os.environ | {"PHP_CLI_SERVER_WORKERS": "3"}):
        r.client("php", "client.php", exact=True)
        r.client("curl", "-sS", "--data-binary", "@big", f"http://127.0.0.1:{r.port}/post.php", exact=True)
        r.client("ab", "-q", "-c", "10", "-n", "300", f"http://127.0.0.1:{r.port}/small",
                 keep="Failed|Non-2xx|Complete", exact=True)


@PROGRAMS.add("busybox", "curl",
              not_only="a static program cannot have the library")
def busybox(r):
    """A static program, which cannot load a library, is first the server and then the client."""
    r.data("big", 2 * MB)
    with r.server("env", "busybox", "httpd", "-f", "-p", f"127.0.0.1:{r.port}", "-h", r.directory):
        r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/big", "-o", "copy")
        r.note_file("copy")
    with r.server("python3", "-m", "http.server", r.port, "--bind", "127.0.0.1", keep=None):
        r.client("env", "busybox", "wget", "-q", "-O", "copy2", f"http://127.0.0.1:{r.port}/big")
        r.note_file("copy2")
