"""Runs the servers and clients of the programs for programs_suite.py, and records their results in notes."""
import collections
import contextlib
import hashlib
import os
import random
import re
import signal
import subprocess
import time

import ways

CLIENT_SECONDS = 60
READY_SECONDS = 30
END_SECONDS = 20
PORT = 18600

Program = collections.namedtuple("Program", "name run needs min_bytes not_only root quick")


class ServerNotReady(Exception):
    """Is raised if a server does not become ready in time."""


class Programs:
    """Lists the programs of one file, in their order."""

    def __init__(self):
        self.programs = []

    def add(self, *needs, min_bytes=0, not_only=None, root=False, quick=False):
        """Adds a function that runs a program.

        `needs` are programs or files that must be installed.  The ring must carry at least `min_bytes` bytes.
        `not_only` is the reason why the program cannot run with --sockets=only, if there is one.  If `root` is set,
        the program needs root and several users.  CI runs the programs that are `quick`.
        """
        def add_function(run):
            self.programs.append(Program(run.__name__, run, needs, min_bytes, not_only, root, quick))
            return run
        return add_function


def is_listening(port):
    suffix = f":{port:04X}"
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(FileNotFoundError), open(name) as file:
            for line in file:
                words = line.split()
                if words[1].endswith(suffix) and words[3] == "0A":
                    return True
    return False


def until_true(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def output_lines(text, exact):
    """Returns the lines of `text`, sorted and without repeats.

    The lines have N instead of numbers and their units, unless `exact` is set.
    """
    text = re.sub(r"\x1b\[[0-9;]*m|\r", "", text)
    if not exact:
        text = re.sub(r"0x[0-9a-f]+|-?\d[\d.,:]*(?:e[-+]?\d+)?", "N", text)
        text = re.sub(r"N ?[kKMGT]?i?(?:Bytes|bits|B|b|s|ms|us|usec|msec|sec|m|k|K|M|G)\b", "N", text)
    return sorted({re.sub(r"\s+", " ", line).strip() for line in text.splitlines()} - {""})


class Round:
    """Represents one run of a program.

    Has its directory, the ways of its server and its clients, and notes of their results.
    """

    def __init__(self, directory, server_way, client_way):
        self.directory, self.server_way, self.client_way = directory, server_way, client_way
        self.port = PORT
        self.notes = []
        self.logs = 0

    def _new_log_path(self, name):
        self.logs += 1
        return self.directory / f"{name}.{self.logs}.log"

    def path(self, name):
        return str(self.directory / name)

    def data(self, name, size):
        """Writes a file of random bytes, which are the same in each round.  Returns its path."""
        (self.directory / name).write_bytes(random.Random(size).randbytes(size))
        return self.path(name)

    def text(self, name, text):
        """Writes a text file.  Returns its path."""
        (self.directory / name).write_text(text)
        return self.path(name)

    def prepare(self, *words, **options):
        """Runs a command that prepares the test.  Its results are not compared."""
        subprocess.run([str(word) for word in words], check=True, cwd=self.directory, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=CLIENT_SECONDS, **options)

    def note(self, what, value):
        self.notes.append(f"{what}: {value}")

    def note_file(self, name):
        """Notes the size and the hash of a file."""
        path = self.directory / name
        data = path.read_bytes() if path.exists() else None
        self.note(name, "missing" if data is None else f"{len(data)} bytes {hashlib.sha256(data).hexdigest()[:16]}")

    def _note_output(self, name, code, output, keep, exact=False):
        """Notes an exit code, and the lines of `output` that match the pattern `keep`.  None matches no line."""
        self.note(name, f"exit code {code}")
        for line in output_lines(output, exact) if keep is not None else []:
            if re.search(keep, line):
                self.note(name, line)

    def _start(self, way, words, log, **options):
        options = {"stdin": subprocess.DEVNULL, "cwd": self.directory} | options
        return subprocess.Popen(ways.command(way, [str(word) for word in words]), stdout=log, stderr=subprocess.STDOUT,
                                start_new_session=True, **options)

    @contextlib.contextmanager
    def server(self, *words, port=None, ready=None, keep="", stop=signal.SIGTERM, way=None, **options):
        """Runs a server until the block ends.  Notes its exit code, and the output lines that match `keep`.

        The server is ready when it listens on the port, or when ready() returns true.
        """
        port = port or self.port
        name = os.path.basename(str(words[0]))
        path = self._new_log_path(name)
        with open(path, "wb") as log:
            process = self._start(way or self.server_way, words, log, **options)
        is_ready = ready or (lambda: is_listening(port))
        try:
            if not until_true(lambda: is_ready() or process.poll() is not None, READY_SECONDS) or not is_ready():
                raise ServerNotReady(f"{name} is not ready: {path.read_text(errors='replace')[-2000:]}")
            yield process
            if stop is not None and process.poll() is None:
                process.send_signal(stop)
            try:
                code = process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                code = "none: it does not end"
            self._note_output(name, code, path.read_text(errors="replace"), keep)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if ready is None and not until_true(lambda: not is_listening(port), END_SECONDS):
                self.note(name, f"port {port} is not free")

    def client(self, *words, keep="", exact=False, way=None, input=None, seconds=CLIENT_SECONDS, **options):
        """Runs a client.  Notes its exit code, and the output lines that match `keep`.  Returns its output.

        If `exact` is set, the numbers in these lines are compared, too.  They must be the same in each run.
        """
        name = os.path.basename(str(words[0]))
        path = self._new_log_path(name)
        if input is not None:
            source = self.directory / "input"
            source.write_bytes(input)
            options["stdin"] = open(source, "rb")
        with open(path, "wb") as log:
            process = self._start(way or self.client_way, words, log, **options)
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = f"none: it hangs for {seconds} s"
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output = path.read_text(errors="replace")
        self._note_output(name, code, output, keep, exact)
        return output
