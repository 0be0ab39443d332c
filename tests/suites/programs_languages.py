"""Runs programs in several languages, and tools for programmers, under `verbena run --sockets`."""
import os
import signal

from programs import Programs, is_listening
from programs_named import MB

PROGRAMS = Programs()


@PROGRAMS.add("tcpserver", "python3", "nc",
              not_only="the next program has the connection as its standard input")
def tcpserver(r):
    """The programs that tcpserver starts inherit the connection as standard input and output."""
    r.data("big", 3 * MB)
    with r.server("tcpserver", "-RHl0", "127.0.0.1", r.port, "cat"):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big >copy")
        r.note_file("copy")
    with r.server("tcpserver", "-RHl0", "127.0.0.1", r.port, "sh", "-c", "head -c 100; wc -c"):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big | tail -c 8", exact=True)
    with r.server("tcpserver", "-RHl0", "127.0.0.1", r.port, "perl", "-e", "while (<>) { print scalar reverse $_; }"):
        r.client("bash", "-c", f"for i in $(seq 2000); do echo line $i; done | nc -N 127.0.0.1 {r.port} | md5sum",
                 exact=True)


@PROGRAMS.add("systemd-socket-activate", "nc",
              not_only="the next program has the connection as its standard input")
def socket_activate(r):
    r.data("big", 3 * MB)
    with r.server("systemd-socket-activate", "-l", f"127.0.0.1:{r.port}", "-a", "--inetd", "cat", keep="rror"):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big >copy")
        r.note_file("copy")


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
  // Uses a blocking and a selectable channel in one program.
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


@PROGRAMS.add("javac", "java")
def java(r):
    r.prepare("javac", r.text("Web.java", JAVA))
    with r.server("java", "-cp", r.directory, "Web", "serve", r.port):
        r.client("java", "-cp", r.directory, "Web", "call", r.port)


@PROGRAMS.add("jshell")
def jshell(r):
    """The shell and the virtual machine that runs its lines communicate by TCP."""
    r.client("jshell", "-s", input=b"int x = 40 + 2\nSystem.out.println(x)\n\"a\".repeat(100000).length()\n/exit\n",
             keep=r"\d|rror", exact=True)


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
    """Go does not call the C library, so its connections stay on TCP, even if the peer has Verbena's library."""
    r.text("web.go", GO)
    r.prepare("go", "build", "-o", "web", "web.go", env=os.environ | {"HOME": str(r.directory), "GO111MODULE": "off"})
    with r.server(r.path("web"), "serve", r.port):
        r.client(r.path("web"), "call", r.port)
        r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/", "-o", "copy")
        r.note_file("copy")


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


@PROGRAMS.add("perl", quick=True)
def perl(r):
    server, client = r.text("server.pl", PERL_SERVER), r.text("client.pl", PERL_CLIENT)
    with r.server("perl", server, r.port):
        r.client("perl", client, r.port, exact=True)
    r.data("big", 3 * MB)
    with r.server("python3", "-m", "http.server", r.port, "--bind", "127.0.0.1", keep=None):
        url = f"http://127.0.0.1:{r.port}/big"
        r.client("perl", "-MHTTP::Tiny", "-e", f"print length HTTP::Tiny->new->get('{url}')->{{content}}", exact=True)


RUBY = """
require 'socket'
if ARGV[0] == 'serve'
  TCPServer.open('127.0.0.1', ARGV[1].to_i) { |l| loop { Thread.new(l.accept) { |c| while (line = c.gets) do
    n = line.to_i; c.write(n.to_s + "\\n", 'x' * n) end; c.close } } }
else
  4.times.map { |k| Thread.new { s = TCPSocket.new('127.0.0.1', ARGV[1].to_i); 200.times { |i| s.puts(i * 100)
    raise 'bad' unless s.gets.to_i == i * 100 and s.read(i * 100).to_s.size == i * 100 }; s.close_write; raise 'end' unless s.read == ''; s.close } }.each(&:join)
  s = TCPSocket.new('127.0.0.1', ARGV[1].to_i); s.write_nonblock("1000000\\n"); all = ''.b
  while all.size < 1000008 do begin; all << s.read_nonblock(50000); rescue IO::WaitReadable; IO.select([s]); end end
  puts all.size
end
"""


@PROGRAMS.add("ruby", "curl")
def ruby(r):
    program = r.text("echo.rb", RUBY)
    with r.server("ruby", program, "serve", r.port, stop=signal.SIGKILL):
        r.client("ruby", program, "call", r.port, exact=True)
    r.data("big", 3 * MB)
    with r.server("ruby", "-run", "-e", "httpd", r.directory, "-p", r.port, "-b", "127.0.0.1", keep="ERROR"):
        r.client("curl", "-sS", f"http://127.0.0.1:{r.port}/big", "-o", "copy")
        r.note_file("copy")


TCL = """
proc take c { if {[gets $c line] < 0} { if {[eof $c]} { close $c } ; return } ; puts $c [string repeat $line 100] }
socket -server {apply {{c args} { fconfigure $c -blocking 0 -buffering line; fileevent $c readable [list take $c] }}} [lindex $argv 0]
vwait forever
"""


@PROGRAMS.add("tclsh")
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


@PROGRAMS.add("gdbserver", "gdb", not_only="gdbserver asks for SIGIO")
def gdbserver(r):
    with r.server("gdbserver", f"127.0.0.1:{r.port}", "/bin/echo", "hello", stop=None,
                  ready=lambda: is_listening(r.port), keep="hello|rror"):
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


@PROGRAMS.add("mpirun", "mpicc")
def openmpi(r):
    """The processes of MPI exchange their messages by TCP."""
    r.prepare("mpicc", "-O", "-o", "ring", r.text("ring.c", MPI))
    r.client("mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "btl", "tcp,self", "--mca", "pml", "ob1",
             "--mca", "btl_tcp_if_include", "lo", "-n", "3", "./ring", keep="good|bad|rror|reset")


@PROGRAMS.add("distccd", "distcc", "gcc", root=True)
def distcc(r):
    source = r.text("a.c", "#include <stdio.h>\n#include <stdlib.h>\nint main(void) { puts(\"hi\"); return 0; }\n")
    with r.server("distccd", "--daemon", "--no-detach", "--allow", "127.0.0.1", "--listen", "127.0.0.1", "-p", r.port,
                  "--log-stderr", "--log-level", "error", "--user", "nobody", "--enable-tcp-insecure", keep="rror"):
        r.client("distcc", "gcc", "-c", source, "-o", "a.o", env=os.environ | {
            "DISTCC_HOSTS": f"127.0.0.1:{r.port}", "DISTCC_FALLBACK": "0", "DISTCC_DIR": str(r.directory), "CCACHE_DISABLE": "1"})
        r.note_file("a.o")


@PROGRAMS.add("valgrind", "curl", "python3")
def valgrind(r):
    r.data("big", MB)
    with r.server("python3", "-m", "http.server", r.port, "--bind", "127.0.0.1", keep=None):
        r.client("valgrind", "-q", "curl", "-sS", f"http://127.0.0.1:{r.port}/big", "-o", "copy", keep="==.*(Invalid|uninit|lost)")
        r.note_file("copy")


@PROGRAMS.add("ncat", "nc.traditional", "nc",
              not_only="the next program has the connection as its standard input")
def other_netcats(r):
    r.data("big", 3 * MB)
    with r.server("ncat", "-l", "127.0.0.1", r.port, "--recv-only", "-o", "got", stop=None,
                  ready=lambda: is_listening(r.port), keep=None):
        r.client("bash", "-c", f"ncat --send-only 127.0.0.1 {r.port} <big")
    r.note_file("got")
    with r.server("ncat", "-l", "127.0.0.1", r.port, "-k", "-c", "wc -c"):
        r.client("bash", "-c", f"nc.traditional -q 5 127.0.0.1 {r.port} <big")
    with r.server("nc.traditional", "-l", "-p", r.port, "-s", "127.0.0.1", "-e", "/bin/cat", stop=None,
                  ready=lambda: is_listening(r.port)):
        r.client("bash", "-c", f"nc -N 127.0.0.1 {r.port} <big >copy2")
        r.note_file("copy2")
