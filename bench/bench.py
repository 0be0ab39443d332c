"""Measures Verbena and its peers, and prints a table.  scripts/bench builds the programs and runs this in new
namespaces.  `scripts/bench --help` describes the options for users."""
import argparse
import datetime
import itertools
import os
import pathlib
import platform
import re
import subprocess
import sys

import job_section
import measure
import picture
import pieces

SOURCE = pathlib.Path(__file__).resolve().parent.parent
PAGE = SOURCE / "docs/benchmarks.md"
PICTURE = PAGE.with_suffix(".svg")
JOB_PICTURE = PAGE.with_name("job_start.svg")

PREFACE = """\
# Benchmarks

`scripts/bench --record` writes this page. No test checks the figures. Do not compare figures of two machines.
Figures of one machine can be compared only if they were measured in turn.
So most lines have a peer that was measured in the same rounds (Verbena, peer, Verbena, peer, ...).
The ratio is the median of the rounds' ratios. Compare ratios rather than figures.
A figure is a median. The smallest and the largest of the rounds are in brackets.

Nothing is pinned unless a line says so: the scheduler places programs as it does for users.
A peer is what a figure is compared with. Mostly it is a program that does nearly the same without Verbena.
In some lines it is a simpler case of Verbena itself.

* Ping-pong is Debian's `ibv_rc_pingpong` against the same exchange over sockets
  ([bench/sockets.cc](../bench/sockets.cc)).
  Both send the same number of bytes there and back, polling (non-blocking calls in a loop) or blocking.
  The default path MTU is 1024. There is no UDP peer for 1 MiB, because UDP would lose some of the bytes.
  Ping-pong and perftest are measured twice: through memory that the two programs share, and through the loopback
  interface, where packets are sent in the same way as between hosts.
* Between two hosts the cable is a program ([tests/wire](../tests/wire)) that carries each frame.
  It loses TCP frames at the same rate as frames of Verbena. The TCP peer is a few lines of Python.
  "Frames" counts all frames of an exchange. With loss there are more frames than without: retransmissions and
  acknowledgements.
* The latencies of perftest are half a round trip; the latency of a READ is a whole round trip. Their peer is the same
  exchange over sockets. The peer of the bandwidths is a TCP exchange of the same number of bytes there and back.
  The bytes of both directions count. The peer of the message rates is a UDP exchange that waits for each answer.
  The messages of both directions count.
* "Two programs of one host" places each end on a processor of its own by `taskset`. Their peers are UCX's shared memory
  (`ucx_perftest`) and the kernel's calls for the memory of another process
  ([bench/host_memory.cc](../bench/host_memory.cc)). While one process copies, the other sleeps.
* Simulated subnets are fat trees under Debian's OpenSM. Their peer is the same exchange between two programs on one
  node of the subnet. Every packet of a subnet goes through the process of the fabric. So if both programs poll, three
  busy processes share the processors.
* Sixteen queue pairs of one program write to another program, whose socket buffer has the default size of Linux.
  Their peer is one queue pair of the same `ib_write_bw`.
* TCP programs run at both ends under `verbena run --sockets`. Their peer is the same pair over TCP.
* In the comparison with the kernel's soft-RoCE, both ends are programs of perftest on one machine.
  QEMU emulates that machine without help of the processor ([tests/interop/linux](../tests/interop/linux)), so it is
  slow. The ratio compares the work of a process with the cost of system calls and interrupts. Emulation distorts it.
* A connection is an RDMA CM connection with a queue pair at both ends. It is resolved, established and disconnected
  ([bench/connections.cc](../bench/connections.cc)). Its peer is TCP's connect, accept and close.
  Wake-ups count how often a sleeping thread of the client, the server or an agent was woken for a connection.
  One process is the server. On loopback there is one agent. Between two network namespaces there are two agents, and
  the kernel carries the frames (veth).
* In lines with "on one", `taskset` binds all processes of both ends to one processor, also the agents.
* "Connect alone" is the time from `rdma_connect()` until ESTABLISHED. Its peer is TCP's `connect()`. These are medians.
* cmtime is a program of rdma-core. It begins each step for all connections before it waits for any of them.
  It has no peer here, because nobody has published its figures for an adapter.
* Memory of queue pairs and connections has no fair peer: the memory of a TCP connection is in the kernel.
  On loopback one agent has both ends of a connection, so one end needs half of the figure in the row about the agent.
  Each queue pair is connected with itself, is ready to send, and may have one outstanding READ
  ([bench/queue_pairs.cc](../bench/queue_pairs.cc)).
* callgrind counts the instructions of the program's own thread inside the call, without those of the kernel
  ([bench/instructions.cc](../bench/instructions.cc)).
"""


def description_of(arguments):
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*: (.*)$", cpuinfo, re.M)
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=SOURCE,
                            capture_output=True, text=True).stdout.strip() or "unknown"
    return (f"Commit {commit}, {datetime.date.today()}; {len(os.sched_getaffinity(0))} CPUs "
            f"({model.group(1) if model else platform.machine()}), Linux {platform.release()};\n"
            f"{arguments.rounds} rounds{', quick' if arguments.quick else ''}; load average before "
            f"{arguments.load:.1f}, after {os.getloadavg()[0]:.1f}.\n"
            f"The benchmark itself makes up to 2 of that load.")


def table(rows):
    lines = []
    for group, members in itertools.groupby(rows, key=lambda row: row.group):
        lines += ["", f"## {group}", "", "| what | unit | Verbena | peer | peer's | ratio |",
                  "|---|---|---:|---|---:|---:|"]
        for row in members:
            ratio = row.ratio()
            digits = 2 if ratio and ratio >= 0.1 else 4
            lines.append(f"| {row.what} | {row.unit} | {measure.figures_text(row.ours)} | {row.peer_name} "
                         f"| {measure.figures_text(row.peer)} | {f'{ratio:.{digits}f}' if ratio else ''} |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prefix", required=True)
    parser.add_argument("--preload", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--record-jobs", action="store_true")
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--job-picture", type=pathlib.Path)
    parser.add_argument("--only", action="append", choices=[*pieces.ALL, "jobs"])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--scale", type=float)
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (3 if arguments.quick else 7)
    arguments.load = os.getloadavg()[0]
    bench = pieces.Bench(arguments.prefix, arguments.rounds,
                         arguments.scale or (0.2 if arguments.quick else 1.0), arguments.preload)
    if arguments.record_jobs:
        arguments.only = ["jobs"]
    rows, jobs, job_picture = [], "", ""
    try:
        for name in arguments.only or [*pieces.ALL, "jobs"]:
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            if name == "jobs":
                jobs, job_picture = job_section.section(bench, table)
            else:
                rows += pieces.ALL[name](bench)
    except measure.Failed as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 1
    text = description_of(arguments) + "\n" + table(rows)
    print(text + jobs)
    if arguments.picture:
        arguments.picture.write_text(picture.picture(rows))
    if arguments.job_picture:
        arguments.job_picture.write_text(job_picture)
    if arguments.record:
        PICTURE.write_text(picture.picture(rows))
        PAGE.write_text(f"{PREFACE}\n![Speed of Verbena as a multiple of its peer's.]({PICTURE.name})\n\n{text}")
        print(f"written: {PAGE.relative_to(SOURCE)} and {PICTURE.relative_to(SOURCE)}")
    if arguments.record or arguments.record_jobs:
        jobs = jobs.replace("## Job start\n", f"## Job start\n\n{description_of(arguments)}\n", 1)
        PAGE.write_text(job_section.replace_section(PAGE.read_text(), jobs))
        JOB_PICTURE.write_text(job_picture)
        print(f"written: the section about jobs, and {JOB_PICTURE.relative_to(SOURCE)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
