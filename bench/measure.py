"""Runs programs, and computes medians and ratios.

Nothing here checks a figure, because machines differ and always have other work.  A figure is the median of several
rounds, with its range.  The ratio of a round compares two runs of this round.  A ratio in a table is the median of the
ratios of all rounds.
"""
import dataclasses
import math
import os
import pathlib
import re
import statistics
import subprocess
import time

TIMEOUT_SECONDS = 120  # for one program


class Failed(Exception):
    pass


class Unmeasured(Failed):
    """perftest could not measure the clock of the processor, so its figures are 0 or infinite."""


@dataclasses.dataclass
class Row:
    """Holds one line of a table: what was measured, and the figures of Verbena and of its peer in each round."""
    group: str
    what: str
    unit: str
    ours: list
    peer_name: str = ""
    peer: list = dataclasses.field(default_factory=list)

    def ratio(self):
        pairs = [a / b for a, b in zip(self.ours, self.peer) if b]
        return statistics.median(pairs) if pairs else None


def figures_text(values):
    """Returns text such as '12.3 (11.9-14.0)', without the range if its ends are the same."""
    if not values:
        return ""
    middle, low, high = (figure_text(f(values)) for f in (statistics.median, min, max))
    return middle if low == high else f"{middle} ({low}-{high})"


def figure_text(value):
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def slope(points):
    """Returns the slope of the least squares line through the points (x, y)."""
    mean_x = statistics.mean(x for x, _ in points)
    mean_y = statistics.mean(y for _, y in points)
    square = sum((x - mean_x) ** 2 for x, _ in points)
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / square if square else 0.0


def output_of(command, **options):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, **options)
    except subprocess.TimeoutExpired:
        raise Failed(f"{' '.join(command)}: not done after {TIMEOUT_SECONDS} s") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(command)}: exit {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def perftest_numbers(output, size):
    """Returns three numbers of perftest's line for a size: min, max, typical (latency); or peak, average, rate."""
    fields = re.search(rf"^ *{size}\s+\d+\s+([\d.]+|inf)\s+([\d.]+|inf)\s+([\d.]+|inf)", output, re.M)
    if not fields:
        raise Failed(f"perftest did not say how fast it was: {output}")
    numbers = [float(word) for word in fields.groups()]
    if not math.isfinite(sum(numbers)) or numbers[2] == 0:
        raise Unmeasured(f"perftest could not measure the clock of the processor: {output}")
    return numbers


def measured(run, tries=5):
    """Returns run().  Repeats it if perftest could not measure the clock, which happens on a busy machine."""
    for _ in range(tries - 1):
        try:
            return run()
        except Unmeasured:
            pass
    return run()


def gbits(rate, size):
    """Converts perftest's rate (million messages of `size` bytes a second) to Gbit/s.  perftest prints the rate with six
    decimals, and the bandwidth with two: a slow run would be 0.00."""
    return rate * size * 8 / 1000


def pingpong_us(output):
    """Returns the microseconds of a round trip that ibv_rc_pingpong has printed."""
    fields = re.search(r"= ([\d.]+) usec/iter", output)
    if not fields:
        raise Failed(f"ibv_rc_pingpong did not say how long it took: {output}")
    return float(fields.group(1))


def wait_until(what, condition, seconds=30):
    """Waits until condition() is true.  `what` names it in the error."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise Failed(f"waited {seconds} s for {what}")
        time.sleep(0.01)


def is_listening(port):
    """Returns True if a program in this network namespace listens on the TCP port."""
    wanted = f":{port:04X}"
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        if not os.path.exists(table):
            continue
        for line in pathlib.Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[1].endswith(wanted):
                return True
    return False


class Server:
    """Runs a program that listens on a TCP port and ends by itself after one client."""

    def __init__(self, command, environment, port):
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True)
        self.port = port

    def __enter__(self):
        wait_until(f"a server on port {self.port}", lambda: is_listening(self.port) or self.process.poll() is not None)
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None:
                self.process.communicate(timeout=TIMEOUT_SECONDS)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.communicate()


def memory_kib(pid):
    """Returns the PSS and the RSS of a process, in KiB.  The PSS counts a shared page only in part, the RSS fully."""
    fields = {}
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, value = line.split(":")
        fields[name] = int(value.split()[0])
    return fields["Pss"], fields["Rss"]


def page_tables_kib(pid):
    """Returns the memory of the process's page tables in KiB.  PSS does not include it."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmPTE:"))


class Holder:
    """Runs a program that prints "holding ..." and waits for a line, or for the end of its input."""

    def __init__(self, command, **options):
        self.command = command
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, **options)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()

    def read_words(self):
        """Reads the next line of the program.  Returns its words."""
        line = self.process.stdout.readline().split()
        if not line or line[0] != "holding":
            raise Failed(f"{' '.join(self.command)}: ended early, said {line}")
        return line

    def send_line(self):
        """Lets the program continue."""
        self.process.stdin.write("\n")
        self.process.stdin.flush()
