"""Programs that the acceptance list of `verbena run --sockets` does not name: other services, and languages."""
import os
import signal

import ways
from programs import Programs, listens
from programs_named import MB

PROGRAMS = Programs()


@PROGRAMS.add("rsync", least=100_000)
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
        r.file(f"copy/{i}")
        r.file(f"up/{i}")


@PROGRAMS.add("vsftpd", "curl", "lftp", "ftp", root=True)
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
        r.file("copy")
        r.client("curl", "-sS", "--ftp-port", "127.0.0.1", f"{url}/big", "-o", "copy2")
        r.file("copy2")
        r.client("curl", "-sS", "-T", "copy", f"{url}/in/up")
        r.file("home/in/up")
        r.client("lftp", "-c", f"open {url}; mirror -P 3 / all")
        r.file("all/big")
        r.client("ftp", "-n", "127.0.0.1", r.port, input=b"user anonymous x\nbinary\nget big copy3\nbye\n",
                 keep="Transfer complete|rror")
        r.file("copy3")


@PROGRAMS.add("mariadbd", "mariadb", root=True, least=100_000)
def mariadb(r):
    os.chmod(r.directory, 0o777)
    common = ("--no-defaults", f"--datadir={r.path('db')}", "--user=mysql")
    r.make("mariadb-install-db", *common, "--auth-root-authentication-method=normal", "--skip-test-db")
    with r.server("mariadbd", *common, f"--port={r.port}", "--bind-address=127.0.0.1", f"--socket={r.path('sock')}",
                  f"--pid-file={r.path('pid')}", "--skip-log-bin", keep=r"\[ERROR\]|signal"):
        client = ("mariadb", "--no-defaults", "-h", "127.0.0.1", "-P", r.port, "-u", "root", "--protocol=tcp")
        r.client(*client, "-e", "create database a; use a; create table t (i int primary key, x varchar(200));"
                 "insert into t select seq, repeat('x', 200) from seq_1_to_20000; select count(*), sum(i) from t;")
        r.client(*client, "-N", "-e", "select * from a.t", keep="^N x{9}|rror")
        r.client("mariadb-dump", *client[1:], "a", keep="INSERT|rror|completed")
        r.client(*client, "a", input=b"".join(b"insert into t values (%d, 'y');\n" % i for i in range(30000, 32000)))
        r.client(*client, "-e", "select count(*), sum(i) from a.t")
        r.client("bash", "-c", " & ".join(f"mariadb --no-defaults -h 127.0.0.1 -P {r.port} -u root -N -e 'select sum(i) "
                                          "from a.t'" for i in range(8)) + "; wait")


@PROGRAMS.add("mosquitto", "mosquitto_pub", "mosquitto_sub", least=100_000)
def mosquitto(r):
    r.data("big", MB)
    conf = r.text("mosquitto.conf", f"listener {r.port} 127.0.0.1\nallow_anonymous true\nuser root\n")
    with r.server("mosquitto", "-c", conf, keep="rror"):
        with r.server("mosquitto_sub", "-p", r.port, "-t", "#", "-C", "502", "-q", "1", way=r.client_way, stop=None,
                      ready=lambda: connections(r.port) >= 1, keep="line|rror"):
            r.client("bash", "-c", f"for i in $(seq 500); do echo line $i; done | mosquitto_pub -p {r.port} -t a -l -q 1")
            r.client("mosquitto_pub", "-p", r.port, "-t", "a", "-f", "big", "-q", "1")
            r.client("mosquitto_pub", "-p", r.port, "-t", "a", "-m", "line end", "-q", "2")


def connections(port):
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
                      ready=lambda: connections(r.port) >= 1, keep="rror"):
            for size in (10, 100_000):
                r.client("gearman", "-h", "127.0.0.1", "-p", r.port, "-f", "count", input=b"x" * size)


@PROGRAMS.add("git", not_only="the next program has the connection as its standard input")
def git_daemon(r):
    r.make("git", "init", "-q", "work")
    r.data("work/big", 3 * MB)
    r.make("git", "-C", "work", "add", "big")
    dates = os.environ | {"GIT_COMMITTER_DATE": "@1 +0000", "GIT_AUTHOR_DATE": "@1 +0000"}
    r.make("git", "-C", "work", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "x", env=dates)
    r.make("git", "clone", "-q", "--bare", "work", "repo.git")
    with r.server("git", "daemon", "--listen=127.0.0.1", f"--port={r.port}", f"--base-path={r.directory}", "--export-all",
                  "--enable=receive-pack", "--reuseaddr", keep="fatal"):
        url = f"git://127.0.0.1:{r.port}/repo.git"
        r.client("git", "clone", "-q", url, "clone")
        r.file("clone/big")
        r.client("git", "ls-remote", url)
        r.data("clone/more", 2 * MB)
        r.make("git", "-C", "clone", "add", "more")
        r.make("git", "-C", "clone", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "y", env=dates)
        r.client("git", "-C", "clone", "push", "-q", "origin", "HEAD:more")
        r.client("git", "ls-remote", url)


@PROGRAMS.add("svnserve", "svn", "svnadmin", least=100_000)
def subversion(r):
    r.make("svnadmin", "create", "repo")
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
            r.file(f"{out}.export/big{len(words)}")


@PROGRAMS.add("dropbear", "dbclient", "dropbearkey", root=True)
def dropbear(r):
    r.data("big", 3 * MB)
    for name in ("host", "user"):
        r.make("dropbearkey", "-t", "ed25519", "-f", name)
    home = r.path("home")
    os.makedirs(f"{home}/.ssh", mode=0o700)
    os.system(f"dropbearkey -y -f {r.path('user')} | grep ^ssh > {home}/.ssh/authorized_keys")
    os.chmod(f"{home}/.ssh/authorized_keys", 0o600)
    os.chmod(r.directory, 0o755)
    passwd = r.text("passwd", open("/etc/passwd").read().replace("root:x:0:0:root:/root:", f"root:x:0:0:root:{home}:"))
    r.make("mount", "--bind", passwd, "/etc/passwd")
    try:
        with r.server("dropbear", "-F", "-E", "-r", r.path("host"), "-p", f"127.0.0.1:{r.port}", "-P", r.path("pid"),
                      keep="rror|fatal"):
            at = ("-y", "-y", "-i", r.path("user"), "-p", r.port, "root@127.0.0.1")
            r.client("dbclient", *at, "echo hi; exit 3", keep="hi|rror|refused|denied")
            r.client("bash", "-c", f"dbclient {' '.join(map(str, at))} 'cat {r.path('big')}' >copy", keep="rror|denied")
            r.file("copy")
    finally:
        r.make("umount", "/etc/passwd")


@PROGRAMS.add("smbd", "smbclient", root=True, least=100_000)
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
        r.file("copy")
        r.file("share/up")


@PROGRAMS.add("tcpserver", "python3", "nc",
              not_only="the next program has the connection as its standard input")
def tcpserver(r):
    """Its programs inherit the connection as standard input and output."""
    r.data("big", 3 * MB)
    with r.server("tcpserver", "-RHl0", "127.0.0.1", r.port, "cat"):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big >copy")
        r.file("copy")
    with r.server("tcpserver", "-RHl0", "127.0.0.1", r.port, "sh", "-c", "head -c 100; wc -c"):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big | tail -c 8")
    with r.server("tcpserver", "-RHl0", "127.0.0.1", r.port, "perl", "-e", "while (<>) { print scalar reverse $_; }"):
        r.client("bash", "-c", f"for i in $(seq 2000); do echo line $i; done | nc -N 127.0.0.1 {r.port} | md5sum")


@PROGRAMS.add("systemd-socket-activate", "curl",
              not_only="the next program has the connection as its standard input")
def socket_activate(r):
    r.data("big", 3 * MB)
    with r.server("systemd-socket-activate", "-l", f"127.0.0.1:{r.port}", "-a", "--inetd", "cat", keep="rror"):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big >copy")
        r.file("copy")


JAVA = """
import com.sun.net.httpserver.*; import java.net.*; import java.net.http.*; import java.nio.*; import java.nio.channels.*;
import java.util.*; import java.util.concurrent.*;
public class Web { public static void main(String[] a) throws Exception { int port = Integer.parseInt(a[1]);
  if (a[0].equals("serve")) { HttpServer s = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    s.setExecutor(Executors.newFixedThreadPool(4)); s.createContext("/", x -> { int n = x.getRequestBody().readAllBytes().length;
      byte[] b = new byte[1000000]; Arrays.fill(b, (byte) n); x.sendResponseHeaders(200, b.length); x.getResponseBody().write(b);
      x.close(); }); s.start(); return; }
  HttpClient c = HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build(); List<Future<Integer>> all = new ArrayList<>();
  for (int i = 0; i < 20; i++) { var q = HttpRequest.newBuilder(URI.create("http://127.0.0.1:" + port + "/"))
      .POST(HttpRequest.BodyPublishers.ofByteArray(new byte[i * 5000])).build();
    all.add(c.sendAsync(q, HttpResponse.BodyHandlers.ofByteArray()).thenApply(r -> r.body().length)); }
  for (var f : all) System.out.println(f.get() == 1000000);
  for (int i = 0; i < 3; i++) { var u = (HttpURLConnection) new URL("http://127.0.0.1:" + port + "/").openConnection();
    System.out.println(u.getInputStream().readAllBytes().length == 1000000); }
  // A blocking and a selectable channel, in one program.
  ServerSocketChannel l = ServerSocketChannel.open().bind(new InetSocketAddress("127.0.0.1", port + 1));
  Thread t = new Thread(() -> { try { SocketChannel p = l.accept(); ByteBuffer b = ByteBuffer.allocate(65536); while (p.read(b) >= 0)
    { b.flip(); while (b.hasRemaining()) p.write(b); b.clear(); } p.close(); } catch (Exception e) { e.printStackTrace(); } }); t.start();
  SocketChannel p = SocketChannel.open(new InetSocketAddress("127.0.0.1", port + 1)); p.configureBlocking(false);
  Selector s = Selector.open(); SelectionKey k = p.register(s, SelectionKey.OP_READ | SelectionKey.OP_WRITE);
  long sent = 0, got = 0; ByteBuffer out = ByteBuffer.allocate(100000), in = ByteBuffer.allocate(100000);
  while (got < 20000000L) { s.select(); s.selectedKeys().clear(); if (k.isReadable()) { in.clear(); int n = p.read(in); if (n < 0) break;
      got += n; } if (k.isWritable() && sent < 20000000L) { out.clear(); out.limit((int) Math.min(100000, 20000000L - sent));
      sent += p.write(out); if (sent == 20000000L) k.interestOps(SelectionKey.OP_READ); } }
  p.close(); t.join(); System.out.println(got == 20000000L); } }
"""


@PROGRAMS.add("javac", "java", least=100_000)
def java(r):
    r.make("javac", r.text("Web.java", JAVA))
    with r.server("java", "-cp", r.directory, "Web", "serve", r.port):
        r.client("java", "-cp", r.directory, "Web", "call", r.port)


@PROGRAMS.add("jshell")
def jshell(r):
    """The shell and the machine that runs its lines talk over TCP."""
    r.client("jshell", "-s", input=b"int x = 40 + 2\nSystem.out.println(x)\n\"a\".repeat(100000).length()\n/exit\n", keep="^N|rror")


GO = """package main
import ("fmt"; "io"; "net"; "net/http"; "os"; "strings"; "sync")
func main() {
  at := "127.0.0.1:" + os.Args[2]
  if os.Args[1] == "serve" {
    big := strings.Repeat("x", 1000000)
    http.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) { n, _ := io.Copy(io.Discard, q.Body); w.Header().Set("n", fmt.Sprint(n)); io.WriteString(w, big) })
    http.ListenAndServe(at, nil)
  }
  var all sync.WaitGroup
  for i := 0; i < 20; i++ { all.Add(1); go func(i int) { defer all.Done(); a, e := http.Post("http://" + at + "/", "x", strings.NewReader(strings.Repeat("y", i * 10000)))
    if e != nil { fmt.Println(e); return }; b, e := io.ReadAll(a.Body); a.Body.Close(); fmt.Println(len(b) == 1000000, a.Header.Get("n") == fmt.Sprint(i * 10000), e) }(i) }
  all.Wait()
  c, e := net.Dial("tcp", at); if e != nil { fmt.Println(e); return }
  io.WriteString(c, "GET / HTTP/1.0\\r\\n\\r\\n"); b, e := io.ReadAll(c); fmt.Println(len(b) > 1000000, e)
}
"""


@PROGRAMS.add("go", "curl", "python3",
              not_only="Go does not use the C library")
def go(r):
    """Go does not use the C library, so its connections stay on TCP, also those with a peer that has the library."""
    r.text("web.go", GO)
    r.make("go", "build", "-o", "web", "web.go", env=os.environ | {"HOME": str(r.directory), "GO111MODULE": "off"})
    with r.server(r.path("web"), "serve", r.port):
        r.client(r.path("web"), "call", r.port)
        r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/", "-o", "copy")
        r.file("copy")


PERL_SERVER = """
use IO::Socket::INET; use IO::Select;
my $l = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $ARGV[0], Listen => 20, ReuseAddr => 1) or die $!;
$SIG{CHLD} = 'IGNORE';
while (1) { my $c = $l->accept() or next; if (fork() == 0) { close $l; while (my $line = <$c>) { last if $line eq "\\n";
  print $c scalar(reverse($line)), "\\n"; } print $c "x" x 1000000; close $c; exit 0; } close $c; }
"""
PERL_CLIENT = """
use IO::Socket::INET;
for my $k (1..5) { my $c = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $ARGV[0]) or die $!;
  for my $i (1..300) { print $c "line $i\\n"; my $empty = <$c>; my $line = <$c>; die "bad $line" unless $line eq reverse("line $i") . "\\n"; }
  print $c "\\n"; my $n = 0; while (read($c, my $b, 10000)) { $n += length $b; } print "$n\\n"; }
"""


@PROGRAMS.add("perl", least=100_000, quick=True)
def perl(r):
    server, client = r.text("server.pl", PERL_SERVER), r.text("client.pl", PERL_CLIENT)
    with r.server("perl", server, r.port):
        r.client("perl", client, r.port)
    r.data("big", 3 * MB)
    with r.server("python3", "-m", "http.server", r.port, "--bind", "127.0.0.1", keep=None):
        r.client("perl", "-MHTTP::Tiny", "-e", f"print length HTTP::Tiny->new->get('http://127.0.0.1:{r.port}/big')->{{content}}")


RUBY = """
require 'socket'
if ARGV[0] == 'serve'
  TCPServer.open('127.0.0.1', ARGV[1].to_i) { |l| loop { Thread.new(l.accept) { |c| while (line = c.gets) do
    n = line.to_i; c.write(n.to_s + "\\n", 'x' * n) end; c.close } } }
else
  4.times.map { |k| Thread.new { s = TCPSocket.new('127.0.0.1', ARGV[1].to_i); 200.times { |i| s.puts(i * 100)
    raise 'bad' unless s.gets.to_i == i * 100 and s.read(i * 100).to_s.size == i * 100 }; s.close_write; raise 'end' unless s.read == ''; s.close } }.each(&:join)
  s = TCPSocket.new('127.0.0.1', ARGV[1].to_i); s.write_nonblock("1000000\\n"); all = ''.b
  while all.size < 1000008 do begin all << s.read_nonblock(50000) rescue IO::WaitReadable IO.select([s]) end end
  puts all.size
end
"""


@PROGRAMS.add("ruby", "curl", least=100_000)
def ruby(r):
    program = r.text("echo.rb", RUBY)
    with r.server("ruby", program, "serve", r.port, stop=signal.SIGKILL):
        r.client("ruby", program, "call", r.port)
    r.data("big", 3 * MB)
    with r.server("ruby", "-run", "-e", "httpd", r.directory, "-p", r.port, "-b", "127.0.0.1", keep="ERROR"):
        r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/big", "-o", "copy")
        r.file("copy")


TCL = """
proc take c { if {[gets $c line] < 0} { if {[eof $c]} { close $c } ; return } ; puts $c [string repeat $line 100] }
socket -server {apply {{c args} { fconfigure $c -blocking 0 -buffering line; fileevent $c readable [list take $c] }}} [lindex $argv 0]
vwait forever
"""


@PROGRAMS.add("tclsh", least=100_000)
def tcl(r):
    server = r.text("server.tcl", TCL)
    client = r.text("client.tcl", """
        set c [socket 127.0.0.1 [lindex $argv 0]]; fconfigure $c -buffering line
        for {set i 0} {$i < 500} {incr i} { puts $c "line $i"; gets $c line; if {$line ne [string repeat "line $i" 100]} { puts bad } }
        puts done""")
    with r.server("tclsh", server, r.port):
        r.client("tclsh", client, r.port)


@PROGRAMS.add("erl")
def erlang(r):
    server = f"""{{ok,L}}=gen_tcp:listen({r.port},[binary,{{active,false}},{{reuseaddr,true}},{{ip,{{127,0,0,1}}}}]),
        F=fun(F)->{{ok,S}}=gen_tcp:accept(L),P=spawn(fun()->receive go->ok end,G=fun(G)->case gen_tcp:recv(S,0) of {{ok,B}}->
        ok=gen_tcp:send(S,B),G(G);_->gen_tcp:close(S) end end,G(G) end),gen_tcp:controlling_process(S,P),P!go,F(F) end,F(F)."""
    client = f"""{{ok,S}}=gen_tcp:connect("127.0.0.1",{r.port},[binary,{{active,false}}]),B=binary:copy(<<"x">>,100000),
        [begin ok=gen_tcp:send(S,B),{{ok,B}}=gen_tcp:recv(S,100000) end||_<-lists:seq(1,50)],io:format("done~n"),halt(0)."""
    home = os.environ | {"HOME": str(r.directory)}
    with r.server("erl", "-noinput", "-eval", server, env=home, keep="rror", stop=signal.SIGKILL):
        r.client("erl", "-noinput", "-eval", client, env=home)


@PROGRAMS.add("etcd", "etcdctl",
              not_only="Go does not use the C library")
def etcd(r):
    """Written in Go."""
    url = f"http://127.0.0.1:{r.port}"
    with r.server("etcd", "--data-dir", r.path("etcd"), "--listen-client-urls", url, "--advertise-client-urls", url,
                  "--listen-peer-urls", f"http://127.0.0.1:{r.port + 1}", "--log-level", "error", keep="panic"):
        api = os.environ | {"ETCDCTL_API": "3"}
        r.client("etcdctl", "--endpoints", url, "put", "a", "b", env=api)
        r.client("etcdctl", "--endpoints", url, "get", "a", env=api)


@PROGRAMS.add("gdbserver", "gdb", not_only="gdbserver asks for SIGIO")
def gdbserver(r):
    with r.server("gdbserver", f"127.0.0.1:{r.port}", "/bin/echo", "hello", stop=None, ready=lambda: listens(r.port),
                  keep="hello|rror"):
        r.client("gdb", "-nx", "-batch", "-ex", f"target remote 127.0.0.1:{r.port}", "-ex", "break write", "-ex", "continue",
                 "-ex", "info registers rip", "-ex", "delete", "-ex", "continue", "/bin/echo",
                 keep="exited normally|Breakpoint N, |rror")


MPI = """
#include <mpi.h>
#include <stdio.h>
#include <string.h>
static char out[1 << 20], in[1 << 20];
int main(int argc, char** argv) {
  int rank, size, good = 1;
  MPI_Init(&argc, &argv); MPI_Comm_rank(MPI_COMM_WORLD, &rank); MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (int i = 0; i < 21; ++i) for (int k = 0; k < 20; ++k) {
    memset(out, rank + i, 1 << i);
    MPI_Sendrecv(out, 1 << i, MPI_CHAR, (rank + 1) % size, 0, in, 1 << i, MPI_CHAR, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int j = 0; j < 1 << i; ++j) good &= in[j] == (char)((rank + size - 1) % size + i);
  }
  MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
  if (rank == 0) puts(good ? "good" : "bad");
  MPI_Finalize(); return 0; }
"""


@PROGRAMS.add("mpirun", "mpicc", least=100_000)
def openmpi(r):
    """Its processes exchange their messages by TCP."""
    r.make("mpicc", "-O", "-o", "ring", r.text("ring.c", MPI))
    # Each process is started under the switch by itself.
    ring = " ".join(ways.command(r.client_way, ["./ring"]))
    r.client("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
             "--mca", "btl_tcp_if_include", "lo", "-n", "3", "sh", "-c", ring, way="plain", keep="good|bad|rror|reset")


@PROGRAMS.add("distccd", "distcc", "gcc", root=True)
def distcc(r):
    source = r.text("a.c", "#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(\"hi\"); return 0; }\n")
    with r.server("distccd", "--daemon", "--no-detach", "--allow", "127.0.0.1", "--listen", "127.0.0.1", "-p", r.port,
                  "--log-stderr", "--log-level", "error", "--user", "nobody", "--enable-tcp-insecure", keep="rror"):
        r.client("distcc", "gcc", "-c", source, "-o", "a.o", env=os.environ | {
            "DISTCC_HOSTS": f"127.0.0.1:{r.port}", "DISTCC_FALLBACK": "0", "DISTCC_DIR": str(r.directory), "CCACHE_DISABLE": "1"})
        r.file("a.o")


@PROGRAMS.add("nbdkit", "nbdcopy", "qemu-img", least=100_000)
def nbdkit(r):
    disk = r.data("disk", 8 * 1024 * 1024)
    with r.server("nbdkit", "-f", "-i", "127.0.0.1", "-p", r.port, "file", disk):
        r.client("nbdcopy", f"nbd://127.0.0.1:{r.port}", "copy")
        r.file("copy")
        r.client("qemu-img", "convert", "-O", "raw", f"nbd://127.0.0.1:{r.port}", "copy2")
        r.file("copy2")
    with r.server("qemu-nbd", "-f", "raw", "-b", "127.0.0.1", "-p", r.port, "-t", disk):
        r.client("nbdcopy", f"nbd://127.0.0.1:{r.port}", "copy3")
        r.file("copy3")


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
    """Its own console is enough for a client."""
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
    """Written in Go, with a client in Python."""
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


@PROGRAMS.add("valgrind", "curl", "python3")
def valgrind(r):
    r.data("big", MB)
    with r.server("python3", "-m", "http.server", r.port, "--bind", "127.0.0.1", keep=None):
        r.client("valgrind", "-q", "curl", "-sS", f"http://127.0.0.1:{r.port}/big", "-o", "copy", keep="==.*(Invalid|uninit|lost)")
        r.file("copy")


@PROGRAMS.add("ncat", "nc.traditional",
              not_only="the next program has the connection as its standard input")
def other_netcats(r):
    r.data("big", 3 * MB)
    with r.server("ncat", "-l", "127.0.0.1", r.port, "--recv-only", "-o", "got", stop=None, ready=lambda: listens(r.port),
                  keep=None):
        r.client("bash", "-c", f"ncat --send-only 127.0.0.1 {r.port} <big")
    r.file("got")
    with r.server("ncat", "-l", "127.0.0.1", r.port, "-k", "-c", "wc -c"):
        r.client("bash", "-c", f"nc.traditional -q 5 127.0.0.1 {r.port} <big")
    with r.server("nc.traditional", "-l", "-p", r.port, "-s", "127.0.0.1", "-e", "/bin/cat", stop=None,
                  ready=lambda: listens(r.port)):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big >copy2")
        r.file("copy2")
