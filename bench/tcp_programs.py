"""Measures TCP programs under `verbena run --sockets`, and the same programs over TCP."""
import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

import measure
from measure import Failed, Row, output_of

PORT = 18600


def command_of(bench, ours, *command):
    if not ours:
        return list(command)
    return [str(bench.prefix / "bin/verbena"), "run", "--sockets", "--", *command]


@contextlib.contextmanager
def server(bench, ours, *command):
    """Runs a server that listens on PORT, until the block ends."""
    process = subprocess.Popen(command_of(bench, ours, *command), env=bench.verbena_environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        measure.until_true(command[0], lambda: measure.listens(PORT) or process.poll() is not None)
        yield
    finally:
        process.terminate()
        process.wait(measure.TIMEOUT_SECONDS)
        measure.until_true(f"port {PORT} to be free", lambda: not measure.listens(PORT))


def last_number(output, pattern):
    numbers = re.findall(pattern, output.replace("\r", "\n"))
    if not numbers:
        raise Failed(f"no figure in: {output[-500:]}")
    return float(numbers[-1])


def sockperf(bench, ours, seconds):
    """Returns microseconds for half a round trip of 64 B: the median."""
    with server(bench, ours, "sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", str(PORT)):
        output = output_of(command_of(bench, ours, "sockperf", "ping-pong", "--tcp", "-i", "127.0.0.1",
                                      "-p", str(PORT), "-m", "64", "-t", str(seconds)), env=bench.verbena_environment)
    return last_number(output, r"percentile 50\.000 =\s*([\d.]+)")


def iperf3(bench, ours, seconds, *options):
    with server(bench, ours, "iperf3", "-s", "-p", str(PORT)):
        output = output_of(command_of(bench, ours, "iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-t",
                                      str(seconds), "-f", "m", *options), env=bench.verbena_environment)
    return last_number(output, r"([\d.]+) Mbits/sec.*receiver") / 1000


def redis(bench, ours, requests, *options):
    with server(bench, ours, "redis-server", "--port", str(PORT), "--save", ""):
        output = output_of(command_of(bench, ours, "redis-benchmark", "-p", str(PORT), "-t", "get", "-q",
                                      "-c", "50", "-n", str(requests), *options), env=bench.verbena_environment)
    return last_number(output, r"([\d.]+) requests per second")


def nginx(bench, ours, seconds, size, *options):
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        os.chmod(root, 0o755)
        (root / "file").write_bytes(os.urandom(size))
        (root / "conf").write_text(f"""
            daemon off; user root; worker_processes 1; pid {root}/pid; error_log {root}/error;
            events {{ worker_connections 512; }}
            http {{ access_log off; client_body_temp_path {root}; proxy_temp_path {root};
                    fastcgi_temp_path {root}; uwsgi_temp_path {root}; scgi_temp_path {root};
                    server {{ listen 127.0.0.1:{PORT}; root {root}; keepalive_requests 1000000; }} }}""")
        with server(bench, ours, "nginx", "-p", directory, "-c", str(root / "conf"), "-e", str(root / "error")):
            output = output_of(command_of(bench, ours, "wrk", "-t1", "-c50", f"-d{seconds}", *options,
                                          f"http://127.0.0.1:{PORT}/file"), env=bench.verbena_environment)
    return last_number(output, r"Requests/sec:\s*([\d.]+)")


def idle_connections(bench):
    """Measures the memory of idle connections that have moved bytes: of both programs, and of the socket service."""
    count = bench.times(10_000)
    ours, tables, theirs = [], [], []
    for _ in range(bench.rounds):
        for has_ring, figures in ((True, ours), (False, theirs)):
            command = command_of(bench, has_ring, bench.program("idle_sockets"), str(count), "100000")
            with measure.Holder(command, env=bench.verbena_environment | {"VERBENA_SOCKETS_RING_IDLE": "1"}) as holder:
                words = holder.words()
                pids = [int(words[3]), int(words[5])]
                if has_ring:
                    measure.until_true("the rings to be given back", lambda: is_given_back(bench), 60)
                    pids.append(service_of(bench)["pid"])
                    tables.append(sum(map(measure.page_tables_kib, pids)) / 1024)
                figures.append(sum(measure.memory_kib(pid)[0] for pid in pids) / 1024)
    what = f"{count:,} idle TCP connections that have moved 100 KB each way"
    yield Row("Memory", f"{what}: programs and service", "MiB PSS", ours, "TCP", theirs)
    yield Row("Memory", f"{what}: their page tables", "MiB", tables)


def service_of(bench):
    output = output_of([str(bench.prefix / "bin/verbena"), "sockets", "stat", "--json"], env=bench.verbena_environment)
    return json.loads(output)["service"]


def is_given_back(bench):
    """Returns True if only the first page of each connection's memory is left, which holds no bytes of the programs."""
    service = service_of(bench)
    return service["resident_bytes"] == service["pairs"] * 4096


def tcp_programs(bench):
    if bench.sanitized:
        print("TCP programs are not measured under a sanitizer")
        return
    yield from idle_connections(bench)
    group = "TCP programs, under run --sockets"
    seconds = bench.times(3)
    for programs, what, unit, run, *arguments in (
            (("sockperf",), "sockperf ping-pong, 64 B, half round trip", "us", sockperf, seconds),
            (("iperf3",), "iperf3", "Gbit/s", iperf3, seconds),
            (("iperf3",), "iperf3 with 4 connections, reversed", "Gbit/s", iperf3, seconds, "-P", "4", "-R"),
            (("redis-server", "redis-benchmark"), "redis GET, 50 clients", "per second", redis,
             bench.times(200000)),
            (("redis-server", "redis-benchmark"), "redis GET, 50 clients, 16 at a time", "per second", redis,
             bench.times(1000000), "-P", "16"),
            (("nginx", "wrk"), "nginx and wrk, 612 B, 50 connections", "per second", nginx, seconds, 612),
            (("nginx", "wrk"), "nginx and wrk, 64 KiB, 50 connections", "per second", nginx, seconds, 65536),
            (("nginx", "wrk"), "nginx and wrk, 612 B, a connection for each request", "per second", nginx, seconds,
             612, "-H", "Connection: close")):
        missing = [name for name in programs if shutil.which(name) is None]
        if missing:
            print(f"{missing[0]} is not installed: {what} is not measured")
            continue
        ours, theirs = bench.in_turn(lambda: run(bench, True, *arguments),
                                     lambda: run(bench, False, *arguments))
        yield Row(group, what, unit, ours, "TCP", theirs)
