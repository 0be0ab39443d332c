"""Runs services with protocols of their own under `verbena run --sockets`."""
import os
import signal

from programs import Programs
from programs_named import MB

PROGRAMS = Programs()


@PROGRAMS.add("rsync")
def rsync(r):
    os.mkdir(r.path("files"))
    for i in range(20):
        r.data(f"files/{i}", 100_000 * (i + 1) // 4)
    conf = r.text("rsyncd.conf", f"use chroot = no\n[m]\npath = {r.directory}\nread only = no\nuid = root\ngid = root\n")
    with r.server("rsync", "--daemon", "--no-detach", f"--port={r.port}", f"--config={conf}", "--address=127.0.0.1",
                  stop=signal.SIGTERM, keep=None):
        url = f"rsync://127.0.0.1:{r.port}/m"
        r.client("rsync", "-a", f"{url}/files/", "copy/")
        r.client("rsync", "-az", "copy/", f"{url}/up/")
        r.client("rsync", "-ac", "--itemize-changes", f"{url}/files/", "up/")
        r.client("rsync", url + "/")
    for i in range(20):
        r.note_file(f"copy/{i}")
        r.note_file(f"up/{i}")


@PROGRAMS.add("vsftpd", "curl", "lftp", "ftp", root=True, not_only="vsftpd makes the connection its standard input")
def vsftpd(r):
    os.makedirs("/run/vsftpd/empty", exist_ok=True)
    home = r.path("home")
    os.mkdir(home)
    r.data("home/big", 3 * MB)
    os.chmod(home, 0o755)
    os.mkdir(f"{home}/in")
    os.chmod(f"{home}/in", 0o777)
    conf = r.text("vsftpd.conf", f"""
listen=YES
listen_port={r.port}
listen_address=127.0.0.1
background=NO
anonymous_enable=YES
local_enable=NO
write_enable=YES
anon_upload_enable=YES
anon_root={home}
no_anon_password=YES
secure_chroot_dir=/run/vsftpd/empty
seccomp_sandbox=NO
pasv_min_port={r.port + 10}
pasv_max_port={r.port + 90}
""")
    os.chmod(conf, 0o644)
    with r.server("vsftpd", conf, keep="OOPS", stop=signal.SIGTERM):
        url = f"ftp://127.0.0.1:{r.port}"
        r.client("curl", "-sS", f"{url}/big", "-o", "copy")
        r.note_file("copy")
        r.client("curl", "-sS", "--ftp-port", "127.0.0.1", f"{url}/big", "-o", "copy2")
        r.note_file("copy2")
        r.client("curl", "-sS", "-T", "copy", f"{url}/in/up")
        r.note_file("home/in/up")
        r.client("lftp", "-c", f"open {url}; mirror -P 3 / all")
        r.note_file("all/big")
        r.client("ftp", "-n", "127.0.0.1", r.port, input=b"user anonymous x\nbinary\nget big copy3\nbye\n",
                 keep="Transfer complete|rror")
        r.note_file("copy3")


@PROGRAMS.add("mariadbd", "mariadb", "mariadb-install-db")
def mariadb(r):
    os.chmod(r.directory, 0o777)
    common = ("--no-defaults", f"--datadir={r.path('db')}", "--user=root")
    r.prepare("mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db")
    with r.server("mariadbd", *common, f"--port={r.port}", "--bind-address=127.0.0.1", f"--socket={r.path('sock')}",
                  f"--pid-file={r.path('pid')}", "--skip-log-bin", keep=r"\[ERROR\]|signal"):
        client = ("mariadb", "--no-defaults", "-h", "127.0.0.1", "-P", r.port, "-u", "root", "--protocol=tcp")
        r.client(*client, "-e", "create database a; use a; create table t (i int primary key, x varchar(200));"
                 "insert into t select seq, repeat('x', 200) from seq_1_to_20000; select count(*), sum(i) from t;",
                 exact=True)
        rows = r.client(*client, "-N", "-e", "select * from a.t", keep="^N x{9}|rror")
        r.note("rows", rows.count("\n"))
        r.client(*client, "a", input=b"".join(b"insert into t values (%d, 'y');\n" % i for i in range(30000, 32000)))
        r.client(*client, "-e", "select count(*), sum(i) from a.t", exact=True)
        r.client("bash", "-c", " & ".join(f"mariadb --no-defaults -h 127.0.0.1 -P {r.port} -u root -N -e 'select sum(i) "
                                          "from a.t'" for i in range(8)) + "; wait", exact=True)


@PROGRAMS.add("mosquitto", "mosquitto_pub", "mosquitto_sub")
def mosquitto(r):
    r.data("big", MB)
    conf = r.text("mosquitto.conf", f"listener {r.port} 127.0.0.1\nallow_anonymous true\nuser root\n")
    with r.server("mosquitto", "-c", conf, keep="rror"):
        with r.server("mosquitto_sub", "-p", r.port, "-t", "#", "-C", "502", "-q", "1", way=r.client_way, stop=None,
                      ready=lambda: count_connections(r.port) >= 1, keep="line|rror"):
            r.client("bash", "-c", f"for i in $(seq 500); do echo line $i; done | mosquitto_pub -p {r.port} -t a -l -q 1")
            r.client("mosquitto_pub", "-p", r.port, "-t", "a", "-f", "big", "-q", "1")
            r.client("mosquitto_pub", "-p", r.port, "-t", "a", "-m", "line end", "-q", "2")


def count_connections(port):
    suffix = f":{port:04X}"
    with open("/proc/net/tcp") as file:
        return sum(line.split()[1].endswith(suffix) and line.split()[3] == "01" for line in file)


@PROGRAMS.add("beanstalkd", "python3")
def beanstalkd(r):
    client = r.text("jobs.py", f"""
import socket
s = socket.create_connection(('127.0.0.1', {r.port}))
f = s.makefile('rb')
for i in range(500):
    body = b'x' * (i * 20)
    s.sendall(b'put 0 0 60 %d\\r\\n%s\\r\\n' % (len(body), body))
    assert f.readline().startswith(b'INSERTED')
for i in range(500):
    s.sendall(b'reserve\\r\\n')
    _, job, size = f.readline().split()
    assert f.read(int(size) + 2) == b'x' * (i * 20) + b'\\r\\n', i
    s.sendall(b'delete %s\\r\\n' % job)
    assert f.readline() == b'DELETED\\r\\n'
print('good')
""")
    with r.server("beanstalkd", "-l", "127.0.0.1", "-p", r.port):
        r.client("python3", client)


@PROGRAMS.add("gearmand", "gearman")
def gearman(r):
    with r.server("gearmand", "-p", r.port, "-L", "127.0.0.1", "-l", "stderr", keep="rror"):
        with r.server("gearman", "-h", "127.0.0.1", "-p", r.port, "-w", "-f", "count", "--", "wc", "-c", way=r.client_way,
                      ready=lambda: count_connections(r.port) >= 1, keep="rror"):
            for size in (10, 100_000):
                r.client("gearman", "-h", "127.0.0.1", "-p", r.port, "-f", "count", input=b"x" * size, exact=True)


@PROGRAMS.add("git", not_only="the next program has the connection as its standard input")
def git_daemon(r):
    r.prepare("git", "init", "-q", "work")
    r.data("work/big", 3 * MB)
    r.prepare("git", "-C", "work", "add", "big")
    dates = os.environ | {"GIT_COMMITTER_DATE": "@1 +0000", "GIT_AUTHOR_DATE": "@1 +0000"}
    r.prepare("git", "-C", "work", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x", env=dates)
    r.prepare("git", "clone", "-q", "--bare", "work", "repo.git")
    with r.server("git", "daemon", "--listen=127.0.0.1", f"--port={r.port}", f"--base-path={r.directory}", "--export-all",
                  "--enable=receive-pack", "--reuseaddr", keep="fatal"):
        url = f"git://127.0.0.1:{r.port}/repo.git"
        r.client("git", "clone", "-q", url, "clone")
        r.note_file("clone/big")
        r.client("git", "ls-remote", url)
        r.data("clone/more", 2 * MB)
        r.prepare("git", "-C", "clone", "add", "more")
        r.prepare("git", "-C", "clone", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "y", env=dates)
        r.client("git", "-C", "clone", "push", "-q", "origin", "HEAD:more")
        r.client("git", "ls-remote", url)


@PROGRAMS.add("svnserve", "svn", "svnadmin")
def subversion(r):
    r.prepare("svnadmin", "create", "repo")
    r.text("repo/conf/svnserve.conf", "[general]\nanon-access = write\n")
    for words in (("--threads",), ()):
        with r.server("svnserve", "-d", "--foreground", *words, "--listen-host", "127.0.0.1", "--listen-port", r.port, "-r",
                      r.directory):
            url, out = f"svn://127.0.0.1:{r.port}/repo", f"out{len(words)}"
            r.client("svn", "checkout", url, out, keep="rror|Checked")
            r.data(f"{out}/big{len(words)}", 3 * MB)
            r.client("svn", "add", f"{out}/big{len(words)}")
            r.client("svn", "commit", "-m", "x", out, keep="rror|Committed")
            r.client("svn", "cat", f"{url}/big{len(words)}", keep=None)
            r.client("svn", "export", url, f"{out}.export", keep="rror|Exported")
            r.note_file(f"{out}.export/big{len(words)}")


@PROGRAMS.add("dropbear", "dbclient", "dropbearkey", root=True)
def dropbear(r):
    r.data("big", 3 * MB)
    for name in ("host", "user"):
        r.prepare("dropbearkey", "-t", "ed25519", "-f", name)
    home = r.path("home")
    os.makedirs(f"{home}/.ssh", mode=0o700)
    os.system(f"dropbearkey -y -f {r.path('user')} | grep ^ssh > {home}/.ssh/authorized_keys")
    os.chmod(f"{home}/.ssh/authorized_keys", 0o600)
    os.chmod(r.directory, 0o755)
    passwd = r.text("passwd", open("/etc/passwd").read().replace("root:x:0:0:root:/root:", f"root:x:0:0:root:{home}:"))
    r.prepare("mount", "--bind", passwd, "/etc/passwd")
    try:
        with r.server("dropbear", "-F", "-E", "-r", r.path("host"), "-p", f"127.0.0.1:{r.port}", "-P", r.path("pid"),
                      keep="rror|fatal"):
            at = ("-y", "-y", "-i", r.path("user"), "-p", r.port, "root@127.0.0.1")
            r.client("dbclient", *at, "echo hi; exit 3", keep="hi|rror|refused|denied")
            r.client("bash", "-c", f"dbclient {' '.join(map(str, at))} 'cat {r.path('big')}' >copy", keep="rror|denied")
            r.note_file("copy")
    finally:
        r.prepare("umount", "/etc/passwd")


@PROGRAMS.add("smbd", "smbclient", root=True)
def samba(r):
    os.mkdir(r.path("share"))
    r.data("share/big", 3 * MB)
    for name in ("lock", "state", "cache", "private", "pid", "ncalrpc"):
        os.mkdir(r.path(name))
    conf = r.text("smb.conf", f"""
[global]
workgroup = W
security = user
map to guest = Bad User
guest account = root
smb ports = {r.port}
interfaces = 127.0.0.1
bind interfaces only = yes
lock directory = {r.path('lock')}
state directory = {r.path('state')}
cache directory = {r.path('cache')}
private dir = {r.path('private')}
pid directory = {r.path('pid')}
ncalrpc dir = {r.path('ncalrpc')}
load printers = no
disable spoolss = yes
log level = 0
[s]
path = {r.path('share')}
guest ok = yes
read only = no
force user = root
""")
    with r.server("smbd", "-F", "--no-process-group", "-s", conf, "--debug-stdout", keep="PANIC|INTERNAL"):
        for command in ("get big copy", "put copy up", "ls", "recurse; ls"):
            r.client("smbclient", "-s", conf, "//127.0.0.1/s", "-p", r.port, "-N", "-c", command,
                     keep="NT_STATUS|rror|big|up")
        r.note_file("copy")
        r.note_file("share/up")


@PROGRAMS.add("etcd", "etcdctl",
              not_only="Go does not use the C library")
def etcd(r):
    """etcd is written in Go."""
    url = f"http://127.0.0.1:{r.port}"
    with r.server("etcd", "--data-dir", r.path("etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
                  "--listen-peer-urls", f"http://127.0.0.1:{r.port + 1}", "--log-level", "error", keep="panic"):
        api = os.environ | {"ETCDCTL_API": "3"}
        r.client("etcdctl", "--endpoints", url, "put", "a", "b", env=api)
        r.client("etcdctl", "--endpoints", url, "get", "a", env=api)


@PROGRAMS.add("nbdkit", "nbdcopy", "qemu-img", "qemu-nbd")
def nbdkit(r):
    disk = r.data("disk", 8 * 1024 * 1024)
    with r.server("nbdkit", "-f", "-i", "127.0.0.1", "-p", r.port, "file", disk):
        r.client("nbdcopy", f"nbd://127.0.0.1:{r.port}", "copy")
        r.note_file("copy")
        r.client("qemu-img", "convert", "-O", "raw", f"nbd://127.0.0.1:{r.port}", "copy2")
        r.note_file("copy2")
    with r.server("qemu-nbd", "-f", "raw", "-b", "127.0.0.1", "-p", r.port, "-t", disk):
        r.client("nbdcopy", f"nbd://127.0.0.1:{r.port}", "copy3")
        r.note_file("copy3")


@PROGRAMS.add("slapd", "ldapadd", "ldapsearch")
def slapd(r):
    os.mkdir(r.path("ldap"))
    conf = r.text("slapd.conf", f"""
include /etc/ldap/schema/core.schema
modulepath /usr/lib/ldap
moduleload back_mdb
pidfile {r.path('pid')}
database mdb
suffix "dc=x"
rootdn "cn=a,dc=x"
rootpw a
directory {r.path('ldap')}
""")
    with r.server("slapd", "-d", "0", "-f", conf, "-h", f"ldap://127.0.0.1:{r.port}"):
        people = b"dn: dc=x\nobjectClass: dcObject\nobjectClass: organization\no: x\ndc: x\n\n" + b"".join(
            b"dn: cn=p%d,dc=x\nobjectClass: person\ncn: p%d\nsn: %s\n\n" % (i, i, b"s" * i) for i in range(1, 300))
        at = ("-x", "-H", f"ldap://127.0.0.1:{r.port}", "-D", "cn=a,dc=x", "-w", "a")
        r.client("ldapadd", *at, input=people)
        r.client("ldapsearch", *at, "-b", "dc=x", "-LLL", "(sn=*)")


@PROGRAMS.add("pgbouncer", "/usr/lib/postgresql", "psql", "setpriv", root=True)
def pgbouncer(r):
    """The client uses pgbouncer's own console, which needs no database."""
    users = r.text("users", '"postgres" "x"\n')
    conf = r.text("pgbouncer.ini", f"""
[databases]
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {r.port}
unix_socket_dir =
auth_type = any
auth_file = {users}
admin_users = postgres
""")
    os.chmod(conf, 0o644)
    with r.server("setpriv", "--reuid", "nobody", "--clear-groups", "pgbouncer", conf, keep="FATAL|ERROR", stop=signal.SIGINT):
        for words in ("show databases", "show version"):
            r.client("psql", "-h", "127.0.0.1", "-p", r.port, "-U", "postgres", "pgbouncer", "-Atc", words)


@PROGRAMS.add("nats-server", "python3",
              not_only="Go does not use the C library")
def nats(r):
    """The NATS server is written in Go, and the client in Python."""
    with r.server("nats-server", "-a", "127.0.0.1", "-p", r.port, keep=r"\[ERR\]|\[FTL\]"):
        r.client("python3", "-c", f"""
import socket
s = socket.create_connection(('127.0.0.1', {r.port})); f = s.makefile('rb')
assert f.readline().startswith(b'INFO')
s.sendall(b'CONNECT {{"verbose":false}}\\r\\nSUB a 1\\r\\n')
for i in range(300):
    s.sendall(b'PUB a %d\\r\\n%s\\r\\n' % (i * 100, b'x' * (i * 100)))
    assert f.readline() == b'MSG a 1 %d\\r\\n' % (i * 100)
    assert f.read(i * 100 + 2) == b'x' * (i * 100) + b'\\r\\n'
print('good')""")


@PROGRAMS.add("ganesha.nfsd", "rpcbind", "nfs-cp", "nfs-ls", root=True)
def nfs_ganesha(r):
    """The server (RPC by libntirpc) and the clients (libnfs) implement NFS in user space."""
    os.mkdir(r.path("share"))
    r.data("share/big", 8 * MB)
    os.makedirs("/var/run/ganesha", exist_ok=True)
    conf = r.text("ganesha.conf", f"""
NFS_CORE_PARAM {{ NFS_Port = {r.port}; Protocols = 4; }}
NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = {r.path('recovery')}; }}
EXPORT {{ Export_Id = 1; Path = {r.path('share')}; Pseudo = /share; Access_Type = RW; Squash = No_Root_Squash;
  SecType = sys; Protocols = 4; Transports = TCP; FSAL {{ Name = VFS; }} }}
""")
    url = f"nfs://127.0.0.1/share/{{}}?version=4&nfsport={r.port}"
    with r.server("rpcbind", "-f", port=111, way="plain", keep=None):
        with r.server("ganesha.nfsd", "-F", "-f", conf, "-L", r.path("ganesha.log"), "-p", r.path("pid"), keep="rror"):
            r.client("nfs-cp", url.format("big"), r.path("copy"))
            r.note_file("copy")
            r.client("nfs-cp", r.path("copy"), url.format("up"))
            r.note_file("share/up")
            r.client("nfs-ls", url.format(""), keep="big|up|rror")


@PROGRAMS.add("unbound", "dig", root=True)
def unbound(r):
    """dig asks for long answers by TCP."""
    records = "".join(f'  local-data: \'big.x. TXT "{i} {"z" * 200}"\'\n' for i in range(200))
    conf = r.text("unbound.conf", f"""
server:
  interface: 127.0.0.1
  port: {r.port}
  do-daemonize: no
  use-syslog: no
  chroot: ""
  username: ""
  pidfile: {r.path('pid')}
  local-zone: "x." static
{records}
remote-control:
  control-enable: no
""")
    with r.server("unbound", "-d", "-c", conf, keep="error"):
        for words in (("+tcp",), ("+tcp", "+keepopen")):
            r.client("dig", "@127.0.0.1", "-p", r.port, *words, "big.x", "TXT", "big.x", "TXT", "none.x", "A",
                     keep="status|TXT|flags|rror|timed")


@PROGRAMS.add("dovecot", "curl", root=True, not_only="dovecot passes connections to other processes")
def dovecot(r):
    """A login process passes each connection to another process, which serves only that connection."""
    for name in ("run", "state", "mail"):
        os.mkdir(r.path(name))
        os.chmod(r.path(name), 0o777)
    users = r.text("users", "a:{PLAIN}b:1000:1000::" + r.path("mail") + "::\n")
    os.chmod(users, 0o644)
    os.chmod(r.directory, 0o755)
    conf = r.text("dovecot.conf", f"""
base_dir = {r.path('run')}
import_environment = LD_PRELOAD VERBENA_SOCKETS VERBENA_SOCKETS_EARLY
state_dir = {r.path('state')}
protocols = imap
ssl = no
disable_plaintext_auth = no
log_path = {r.path('log')}
mail_location = maildir:{r.path('mail')}/M
passdb {{
  driver = passwd-file
  args = {users}
}}
userdb {{
  driver = passwd-file
  args = {users}
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    address = 127.0.0.1
    port = {r.port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service stats {{
  unix_listener stats-writer {{
    mode = 0666
  }}
}}
""")
    letter = r.text("letter", "Subject: x\r\n\r\n" + ("line of a letter\r\n" * 20000))
    with r.server("dovecot", "-F", "-c", conf, keep="Fatal|Error"):
        url = f"imap://127.0.0.1:{r.port}/INBOX"
        r.client("curl", "-sS", "-u", "a:b", "-T", letter, url)
        r.client("curl", "-sS", "-u", "a:b", f"{url};MAILINDEX=1", "-o", "copy")
        r.note_file("copy")
        r.client("curl", "-sS", "-u", "a:b", f"imap://127.0.0.1:{r.port}/", "-X", "STATUS INBOX (MESSAGES)")
