"""Runs programs for sound, pictures and desktops under `verbena run --sockets`."""
import signal

from programs import Programs
from programs_named import MB

PROGRAMS = Programs()


@PROGRAMS.add("ffmpeg")
def ffmpeg(r):
    """ffmpeg sends and receives a stream of pictures by TCP and by HTTP."""
    source = ("-f", "lavfi", "-i", "testsrc=size=320x240:rate=25", "-frames:v", "60", "-pix_fmt", "yuv420p", "-c:v",
              "rawvideo", "-threads", "1")
    quiet = ("ffmpeg", "-nostdin", "-y", "-v", "error")
    for i, (listen_url, call_url) in enumerate(((f"tcp://127.0.0.1:{r.port}?listen=1", f"tcp://127.0.0.1:{r.port}"),
                                              (f"http://127.0.0.1:{r.port}/a", f"http://127.0.0.1:{r.port}/a"))):
        options = ("-listen", "1") if i else ()
        with r.server(*quiet, *options, "-f", "nut", "-i", listen_url, "-c", "copy", "-fflags", "+bitexact", "-f",
                      "yuv4mpegpipe",
                      "-strict", "-1", r.path(f"got{i}"), stop=None):
            r.client(*quiet, *source, "-f", "nut", call_url)
        r.note_file(f"got{i}")


@PROGRAMS.add("gst-launch-1.0")
def gstreamer(r):
    """GStreamer uses GLib's sockets, with a thread for each element."""
    big = r.data("big", 5 * MB)
    with r.server("gst-launch-1.0", "-q", "tcpserversrc", "host=127.0.0.1", f"port={r.port}", "!", "filesink",
                  f"location={r.path('got')}",
                  stop=None):
        r.client("gst-launch-1.0", "-q", "filesrc", f"location={big}", "!", "tcpclientsink", "host=127.0.0.1",
                 f"port={r.port}")
    r.note_file("got")
    with r.server("gst-launch-1.0", "-q", "videotestsrc", "!", "video/x-raw,width=160,height=120", "!",
                  "tcpserversink", "host=127.0.0.1",
                  f"port={r.port}", keep="rror", stop=signal.SIGKILL):
        r.client("gst-launch-1.0", "-q", "tcpclientsrc", "host=127.0.0.1", f"port={r.port}", "num-buffers=200", "!",
                 "fakesink")


RFB = """
import hashlib, socket, struct, sys
s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); f = s.makefile('rb')
print(f.read(12)); s.sendall(b'RFB 003.008\\n')
assert 1 in f.read(f.read(1)[0])  # no password
s.sendall(b'\\1'); assert f.read(4) == bytes(4)
s.sendall(b'\\1'); w, h = struct.unpack('>HH', f.read(4)); f.read(16)
f.read(struct.unpack('>I', f.read(4))[0]); print(w, h)
s.sendall(struct.pack('>BBHi', 2, 0, 1, 0))  # raw pictures
for k in range(6):
    s.sendall(struct.pack('>BBHHHH', 3, 0, 0, 0, w, h)); got = 0
    while got < w * h:
        kind = f.read(1)[0]
        assert kind == 0, kind
        for _ in range(struct.unpack('>xH', f.read(3))[0]):
            x, y, rw, rh, e = struct.unpack('>HHHHi', f.read(12)); assert e == 0; f.read(rw * rh * 4); got += rw * rh
    print(got)
"""


@PROGRAMS.add("Xtigervnc", "python3", min_bytes=MB)
def vnc(r):
    with r.server("Xtigervnc", ":77", "-rfbport", r.port, "-interface", "127.0.0.1", "-SecurityTypes", "None",
                  "-geometry", "800x600", "-depth", "24",
                  "-AlwaysShared", keep=None):
        for _ in range(2):
            r.client("python3", r.text("rfb.py", RFB), r.port)
