"""Measures two programs of one host, each on its own processor.  The peers are UCX's shared memory and system calls."""
import os
import re
import shutil

import measure
from measure import Failed, Row, output_of

GROUP = "Two programs of one host, each on its own processor"
PORT = 18602
UCX_PORT = 13337
# UCX may only use shared memory, and process_vm_readv() for long messages.
UCX = {"UCX_TLS": "posix,sysv,cma,self", "UCX_WARN_UNUSED_ENV_VARS": "n"}


def pinned_to(processor, command):
    return ["taskset", "--cpu-list", str(sorted(os.sched_getaffinity(0))[processor]), *command]


def both_ends(command, environment, port):
    """Runs the command as server on the first processor, and as client on the second.  Returns the client's output."""
    with measure.Server(pinned_to(0, command), environment, port):
        return output_of(pinned_to(1, [*command, "127.0.0.1"]), env=environment)


def perftest(bench, program, size, count, *options):
    """Returns the first three numbers of perftest's line: min, max, typical (latency); or peak, average, rate."""
    command = bench.run_command(program, "-d", "verbena0", "-x", "0", "-F", "-s", str(size), "-n", str(count), "-p",
                        str(PORT), "--report_gbits", *options)
    output = both_ends(command, bench.verbena_environment, PORT)
    return measure.perftest_numbers(output, size)


def ucx(bench, test, size, count):
    """Returns the median latency in microseconds, and the messages per second."""
    output = both_ends(["ucx_perftest", "-p", str(UCX_PORT), "-t", test, "-s", str(size), "-n", str(count)],
                       {**bench.environment, **UCX}, UCX_PORT)
    found = re.search(r"^Final: +\d+ +([\d.]+) +[\d.]+ +[\d.]+ +[\d.]+ +[\d.]+ +(\d+)", output, re.M)
    if not found:
        raise Failed(f"ucx_perftest did not say how fast it was: {output}")
    return float(found.group(1)), float(found.group(2))


def host_peers(bench):
    if len(os.sched_getaffinity(0)) < 2 or not shutil.which("ib_send_lat"):
        print("two programs of one host are left out: that needs two processors and perftest (scripts/deps test)")
        return
    with_ucx = shutil.which("ucx_perftest") is not None
    if not with_ucx:
        print("UCX is left out: ucx_perftest is not installed (scripts/deps test)")

    def kernel(*words):
        return float(output_of([bench.program("host_memory"), *map(str, words)], env=bench.environment))

    def compare(what, unit, ours, *peers):
        figures, *theirs = bench.in_turn(ours, *(run for _, run in peers))
        for (name, _), values in zip(peers, theirs):
            yield Row(GROUP, what, unit, figures, name, values)

    many, few = bench.scaled(50_000), bench.scaled(3_000)
    for size in (64, 4096):
        peers = [("UCX tag_lat", lambda: ucx(bench, "tag_lat", size, many)[0])] if with_ucx else []
        yield from compare(f"SEND of {size} B, half round trip, polling", "us, typical",
                           lambda: perftest(bench, "ib_send_lat", size, many, "-m", "4096")[2],
                           *peers, ("two futex wakes, half round trip", lambda: kernel("futex", few)))
    yield from compare("WRITE of 8 B, half round trip, the target looks at its memory", "us, typical",
                       lambda: perftest(bench, "ib_write_lat", 8, many)[2],
                       ("process_vm_writev() of 8 B", lambda: kernel("vm-latency", many)),
                       ("pwrite() to /proc/PID/mem of 8 B", lambda: kernel("mem-latency", many)))
    yield from compare("SEND of 64 B, half round trip, both ends sleep", "us, typical",
                       lambda: perftest(bench, "ib_send_lat", 64, few, "-e")[2],
                       ("two futex wakes, half round trip", lambda: kernel("futex", few)))
    if with_ucx:
        yield from compare("SEND of 64 B, one queue pair", "million messages/s",
                           lambda: perftest(bench, "ib_send_bw", 64, 20 * many)[2],
                           ("UCX tag_bw", lambda: ucx(bench, "tag_bw", 64, 20 * many)[1] / 1e6))
    megabyte = 1 << 20
    for program, what, call in (("ib_write_bw", "WRITE", "write"), ("ib_read_bw", "READ", "read")):
        yield from compare(f"{what} of 1 MiB", "Gbit/s",
                           lambda: measure.gbits(perftest(bench, program, megabyte, few, "-m", "4096")[2], megabyte),
                           (f"process_vm_{call}v()", lambda: kernel(f"vm-{call}", few, megabyte)),
                           (f"p{call}() of /proc/PID/mem", lambda: kernel(f"mem-{call}", few, megabyte)),
                           ("memcpy", lambda: kernel("memcpy", few, megabyte)))
