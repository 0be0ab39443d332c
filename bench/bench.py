"""Measures Verbena beside its peers and prints a table.  scripts/bench builds, and runs this in a
namespace of its own; see there for the options."""
import argparse
import datetime
import itertools
import os
import pathlib
import platform
import re
import subprocess
import sys

import measure
import pieces

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PAGE = SOURCE / "docs/benchmarks.md"

PREFACE = """\
# Benchmarks

Written by `scripts/bench --record`; nothing here is asserted by a test. Figures of two machines cannot be
compared, and those of one only if they were taken in turn: so each line has a peer measured in the same
rounds (ours, peer, ours, peer, ...), and the ratio, the median of the rounds' own, is what to look at.
A figure is a median; in brackets, the smallest and the largest of the rounds.

Nothing is pinned, but for what says so: the scheduler places programs as it does for users. The peers are the nearest thing that
does the same without Verbena:

* Ping-pong is Debian's `ibv_rc_pingpong` against the same exchange over sockets ([bench/sockets.cc](../bench/sockets.cc)):
  as many bytes there and back, polling (non-blocking calls in a loop) or blocking. Its default path MTU is 1024.
  There is no UDP peer for 1 MiB: UDP alone would lose some of it.
* Between two hosts the line is a program ([tests/wire](../tests/wire)) that carries each frame, and loses as many
  of TCP's as of ours. The TCP peer is a few lines of Python. Frames are all that the line was given, for each
  exchange: what is above those without loss was sent again, or is an acknowledgement more.
* perftest's latencies are half a round trip (a READ's a whole one) beside the same exchange over sockets; its
  bandwidths have a TCP exchange of as many bytes there and back for their peer, both ways counted.
* Sixteen queue pairs of one program into another's socket, whose buffer is what a stock Linux gives, have one queue
  pair of the same `ib_write_bw` as their peer.
* Beside the kernel's soft-RoCE both ends are programs of perftest on one machine that QEMU emulates without help of the
  processor ([tests/interop/linux](../tests/interop/linux)): the figures are of that machine, slow as it is; the ratio
  says what a system call and an interrupt cost against a process's own work, which emulation distorts.
* A connection is an RDMA CM connection with a queue pair at both ends, resolved, made and disconnected
  ([bench/connections.cc](../bench/connections.cc)), against TCP's connect, accept and close; wake-ups are how often
  a thread that slept was woken for it, in the client, the server and the agents. One process serves. On
  loopback there is one agent, between two network namespaces there are two, and the line is the kernel's own (veth).
  For "on one" all that takes part, the agents too, is kept on one processor by `taskset`.
  Of one connection, "connect alone" is `rdma_connect()` until ESTABLISHED, beside TCP's `connect()`; these are medians.
* cmtime is rdma-core's, which begins a step with all connections before it waits for any; nobody has published its
  figures of an adapter, so it has no peer here.
* Memory of queue pairs and connections has no honest peer: a TCP connection's is the kernel's, and shows in no process.
  On loopback the agent has both ends of a connection, so what it needs of each end is half of that row.
  A queue pair is ready to send, with itself, and may have one READ under way ([bench/queue_pairs.cc](../bench/queue_pairs.cc)).
* Instructions are those of the program's own thread inside the call, as callgrind counts them, without the kernel's
  ([bench/instructions.cc](../bench/instructions.cc)).
"""


def described(arguments):
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.M)
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=SOURCE,
                            capture_output=True, text=True).stdout.strip() or "unknown"
    return (f"Commit {commit}, {datetime.date.today()}; {len(os.sched_getaffinity(0))} CPUs "
            f"({model.group(1) if model else platform.machine()}), Linux {platform.release()}; "
            f"{arguments.rounds} rounds{', quick' if arguments.quick else ''}; load average before "
            f"{arguments.load:.1f}, after {os.getloadavg()[0]:.1f} (of which the benchmark itself "
            f"makes up to 2).")


def table(rows):
    lines = []
    for group, members in itertools.groupby(rows, key=lambda row: row.group):
        lines += ["", f"## {group}", "", "| what | unit | Verbena | peer | peer's | ratio |",
                  "|---|---|---:|---|---:|---:|"]
        for row in members:
            ratio = row.ratio()
            digits = 2 if ratio and ratio >= 0.1 else 4
            lines.append(f"| {row.what} | {row.unit} | {measure.figure(row.ours)} | {row.peer_name} "
                         f"| {measure.figure(row.peer)} | {f'{ratio:.{digits}f}' if ratio else ''} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--only", action="append", choices=list(pieces.ALL))
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--scale", type=float)
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 7)
    arguments.load = os.getloadavg()[0]
    bench = pieces.Bench(arguments.prefix, arguments.rounds,
                         arguments.scale or (0.2 if arguments.quick else 1.0), arguments.preload)
    rows = []
    try:
        for name in arguments.only or pieces.ALL:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            rows += pieces.ALL[name](bench)
    except measure.Failed as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    text = described(arguments) + "\n" + table(rows)
    print(text)
    if arguments.record:
        PAGE.write_text(PREFACE + "\n" + text)
        print(f"written: {PAGE.relative_to(SOURCE)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
