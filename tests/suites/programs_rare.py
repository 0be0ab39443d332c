"""Runs programs in rare languages under `verbena run --sockets`."""
import signal

from programs import Programs
from programs_compiled import ECHO_CLIENT

PROGRAMS = Programs()


def echo(r, *words):
    """Runs an echo server, and 12 connections of a client in Python."""
    client = r.text("call.py", ECHO_CLIENT)
    with r.server(*words, stop=signal.SIGKILL, keep=None):
        r.client("python3", client, r.port)


@PROGRAMS.add("sbcl")
def lisp(r):
    """SBCL's streams find the functions of the C library by name, and use them on the descriptor."""
    program = r.text("echo.lisp", """
(require :sb-bsd-sockets)
(let ((l (make-instance 'sb-bsd-sockets:inet-socket :type :stream :protocol :tcp))
      (b (make-array 20000 :element-type '(unsigned-byte 8))))
  (setf (sb-bsd-sockets:sockopt-reuse-address l) t)
  (sb-bsd-sockets:socket-bind l #(127 0 0 1) (parse-integer (second sb-ext:*posix-argv*)))
  (sb-bsd-sockets:socket-listen l 64)
  (loop (let* ((c (sb-bsd-sockets:socket-accept l))
               (s (sb-bsd-sockets:socket-make-stream c :input t :output t :buffering :full
                                                    :element-type '(unsigned-byte 8))))
    (loop for n = (sb-sys:read-n-bytes s b 0 20000 nil) while (plusp n) do (write-sequence b s :end n))
    (finish-output s) (close s))))
""")
    echo(r, "sbcl", "--script", program, r.port)


@PROGRAMS.add("swipl")
def prolog(r):
    program = r.text("echo.pl", """
:- use_module(library(socket)).
main :- current_prolog_flag(argv, [A|_]), atom_number(A, P), tcp_socket(L), tcp_setopt(L, reuseaddr),
  tcp_bind(L, localhost:P), tcp_listen(L, 64),
  tcp_open_socket(L, A2), loop(A2).
loop(L) :- tcp_accept(L, C, _), thread_create(serve(C), _, [detached(true)]), loop(L).
serve(C) :- tcp_open_socket(C, I, O), set_stream(I, encoding(octet)), set_stream(O, encoding(octet)),
  copy_stream_data(I, O), close(O), close(I).
:- initialization(main).
""")
    echo(r, "swipl", program, r.port)


@PROGRAMS.add("fpc", not_only="a static program cannot have the library")
def pascal(r):
    """Free Pascal makes its system calls itself, so its connections use TCP."""
    r.prepare("fpc", "-O2", r.text("echo.pas", """
program echo; uses sockets, baseunix, sysutils;
var l, c: longint; a: TInetSockAddr; n, k, done: int64; b: array[0..19999] of byte; on: longint;
begin
  l := fpSocket(AF_INET, SOCK_STREAM, 0); on := 1; fpSetSockOpt(l, SOL_SOCKET, SO_REUSEADDR, @on, sizeof(on));
  a.sin_family := AF_INET; a.sin_port := htons(StrToInt(ParamStr(1))); a.sin_addr.s_addr := htonl($7F000001);
  fpBind(l, @a, sizeof(a)); fpListen(l, 64);
  while true do begin
    c := fpAccept(l, nil, nil);
    repeat n := fpRecv(c, @b, sizeof(b), 0); done := 0;
      while done < n do begin k := fpSend(c, @b[done], n - done, 0); if k <= 0 then break; done := done + k; end;
    until n <= 0;
    fpClose(c);
  end;
end.
"""))
    echo(r, "env", r.path("echo"), r.port)


@PROGRAMS.add("gnatmake")
def ada(r):
    """A task of Ada serves each connection."""
    r.text("echo.adb", """
with Ada.Command_Line, Ada.Streams, GNAT.Sockets; use Ada.Streams, GNAT.Sockets;
procedure Echo is
   L, C : Socket_Type; A : Sock_Addr_Type;
   task type Server is entry Take (S : Socket_Type); end Server;
   task body Server is
      C : Socket_Type; B : Stream_Element_Array (1 .. 20_000); Last, Sent, First : Stream_Element_Offset;
   begin
      accept Take (S : Socket_Type) do C := S; end Take;
      loop
         Receive_Socket (C, B, Last); exit when Last < B'First; First := B'First;
         while First <= Last loop Send_Socket (C, B (First .. Last), Sent); First := Sent + 1; end loop;
      end loop;
      Close_Socket (C);
   end Server;
   type Ref is access Server; One : Ref;
begin
   Create_Socket (L); Set_Socket_Option (L, Socket_Level, (Reuse_Address, True));
   A.Addr := Inet_Addr ("127.0.0.1"); A.Port := Port_Type'Value (Ada.Command_Line.Argument (1));
   Bind_Socket (L, A); Listen_Socket (L, 64);
   loop Accept_Socket (L, C, A); One := new Server; One.Take (C); end loop;
end Echo;
""")
    r.prepare("gnatmake", "-O", "echo.adb")
    echo(r, r.path("echo"), r.port)
