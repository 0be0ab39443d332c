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
POSTGRES = "/usr/lib/postgresql/15/bin"


def command_of(bench, ours, *command):
    """Returns the command.  If `ours` is true, it runs under `verbena run --sockets`."""
    if not ours:
        return list(command)
    return [str(bench.prefix / "bin/verbena"), "run", "--sockets", "--", *command]


@contextlib.contextmanager
def server(bench, ours, *command):
    """Runs a server that listens on PORT, until the block ends."""
    process = subprocess.Popen(command_of(bench, ours, *command), env=bench.verbena_environment,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        measure.wait_until(command[0], lambda: measure.is_listening(PORT) or process.poll() is not None)
        yield
    finally:
        process.terminate()
        process.wait(measure.TIMEOUT_SECONDS)
        measure.wait_until(f"port {PORT} to be free", lambda: not measure.is_listening(PORT))


def last_number(output, pattern):
    numbers = re.findall(pattern, output.replace("\r", "\n"))
    if not numbers:
        raise Failed(f"no figure in: {output[-500:]}")
    return float(numbers[-1])


def sockperf_server(bench, ours, *options):
    return server(bench, ours, "sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", str(PORT), *options)


def sockperf_client(bench, ours, test, seconds, size, *options):
    return output_of(command_of(bench, ours, "sockperf", test, "--tcp", "-i", "127.0.0.1", "-p", str(PORT), "-m",
                                str(size), "-t", str(seconds), *options), env=bench.verbena_environment)


def sockperf_latency(bench, ours, seconds, size, *options):
    """Returns the median of half a round trip, in microseconds."""
    with sockperf_server(bench, ours, *options):
        output = sockperf_client(bench, ours, "ping-pong", seconds, size, *options)
    return last_number(output, r"percentile 50\.000 =\s*([\d.]+)")


def sockperf_stream(bench, ours, seconds, size):
    with sockperf_server(bench, ours):
        output = sockperf_client(bench, ours, "throughput", seconds, size)
    return last_number(output, r"BandWidth is [\d.]+ MBps \(([\d.]+) Mbps\)") / 1000


def iperf3(bench, ours, seconds, *options):
    with server(bench, ours, "iperf3", "-s", "-p", str(PORT)):
        output = output_of(command_of(bench, ours, "iperf3", "-c", "127.0.0.1", "-p", str(PORT), "-t",
                                      str(seconds), "-f", "m", *options), env=bench.verbena_environment)
    return last_number(output, r"([\d.]+) Mbits/sec.*receiver") / 1000


def redis(bench, ours, requests, test, clients, *options, client_is_ours=None):
    with server(bench, ours, "redis-server", "--port", str(PORT), "--save", ""):
        with_verbena = ours if client_is_ours is None else client_is_ours
        output = output_of(command_of(bench, with_verbena, "redis-benchmark", "-p", str(PORT), "-t", test, "-q",
                                      "-c", str(clients), "-n", str(requests), *options), env=bench.verbena_environment)
    return last_number(output, r"([\d.]+) requests per second")


def redis_with_plain_client(bench, ours, *arguments):
    return redis(bench, ours, *arguments, client_is_ours=False)


def memcached(bench, ours, gets):
    threads = 8
    with server(bench, ours, "memcached", "-p", str(PORT), "-l", "127.0.0.1", "-u", "nobody", "-U", "0", "-t", "1"):
        output = output_of(command_of(bench, ours, "memcslap", f"--servers=127.0.0.1:{PORT}", "--test=get",
                                      f"--concurrency={threads}", f"--execute-number={gets // threads}"),
                           env=bench.verbena_environment)
    return gets / last_number(output, r"Time to get .*threads: +([\d.]+) seconds")


def pgbench(bench, ours, seconds):
    # PostgreSQL refuses to run as root.
    user = ("setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups")
    with tempfile.TemporaryDirectory() as directory:
        os.chown(directory, 1000, 1000)
        database = directory + "/db"
        output_of([*user, f"{POSTGRES}/initdb", "-D", database, "-A", "trust", "-U", "bench", "--no-sync"])
        at = ("-h", "127.0.0.1", "-p", str(PORT), "-U", "bench")
        with server(bench, ours, *user, f"{POSTGRES}/postgres", "-D", database, "-p", str(PORT), "-c",
                    "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=off"):
            measure.wait_until("postgres", lambda: subprocess.run(
                [f"{POSTGRES}/pg_isready", "-q", *at], check=False).returncode == 0)
            output_of([f"{POSTGRES}/pgbench", *at, "-i", "-q", "postgres"])
            output = output_of(command_of(bench, ours, f"{POSTGRES}/pgbench", *at, "-n", "-S", "-M", "prepared",
                                          "-c", "8", "-T", str(seconds), "postgres"), env=bench.verbena_environment)
    return last_number(output, r"tps = ([\d.]+)")


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
    """Measures the memory of both programs and of the socket service, for idle connections that have moved bytes."""
    count = bench.scaled(10_000)
    ours, tables, theirs = [], [], []
    for _ in range(bench.rounds):
        for has_ring, figures in ((True, ours), (False, theirs)):
            command = command_of(bench, has_ring, bench.program("idle_sockets"), str(count), "100000")
            with measure.Holder(command, env=bench.verbena_environment | {"VERBENA_SOCKETS_RING_IDLE": "1"}) as holder:
                words = holder.read_words()
                pids = [int(words[3]), int(words[5])]
                if has_ring:
                    measure.wait_until("the release of the rings", lambda: are_rings_released(bench), 60)
                    pids.append(socket_service(bench)["pid"])
                    tables.append(sum(map(measure.page_tables_kib, pids)) / 1024)
                figures.append(sum(measure.memory_kib(pid)[0] for pid in pids) / 1024)
    what = f"{count:,} idle TCP connections that have moved 100 KB each way"
    yield Row("Memory", f"{what}: programs and service", "MiB PSS", ours, "TCP", theirs)
    yield Row("Memory", f"{what}: their page tables", "MiB", tables)


def socket_service(bench):
    output = output_of([str(bench.prefix / "bin/verbena"), "sockets", "stat", "--json"], env=bench.verbena_environment)
    return json.loads(output)["service"]


def are_rings_released(bench):
    """Returns True if each connection only has the first page of its memory, which contains no data of the programs."""
    service = socket_service(bench)
    return service["resident_bytes"] == service["pairs"] * 4096


def tcp_programs(bench):
    if bench.sanitized:
        print("TCP programs are not measured under a sanitizer")
        return
    yield from idle_connections(bench)
    group = "TCP programs, under run --sockets"
    for programs, what, unit, run, *arguments in programs_to_measure(bench):
        missing = [name for name in programs if shutil.which(name) is None]
        if missing:
            print(f"{missing[0]} is not installed: {what} is not measured")
            continue
        ours, theirs = bench.in_turn(lambda: run(bench, True, *arguments),
                                     lambda: run(bench, False, *arguments))
        yield Row(group, what, unit, ours, "TCP", theirs)


def programs_to_measure(bench):
    """Returns for each row the programs that it needs, its name and unit, and the function that measures it."""
    seconds = bench.scaled(3)
    requests, pipelined = bench.scaled(200_000), bench.scaled(1_000_000)
    redis_programs = ("redis-server", "redis-benchmark")
    rows = []
    for size in (14, 64):
        rows += [(("sockperf",), f"sockperf ping-pong, {size} B, half round trip, blocking", "us", sockperf_latency,
                  seconds, size),
                 (("sockperf",), f"sockperf ping-pong, {size} B, half round trip, polling", "us", sockperf_latency,
                  seconds, size, "--nonblocked")]
    rows += [(("sockperf",), f"sockperf throughput, {size:,} B", "Gbit/s", sockperf_stream, seconds, size)
             for size in (64, 1472, 65000)]
    rows += [(("iperf3",), "iperf3", "Gbit/s", iperf3, seconds),
             (("iperf3",), "iperf3 with 4 connections, reversed", "Gbit/s", iperf3, seconds, "-P", "4", "-R")]
    for test in ("get", "set"):
        for clients in (50, 200):
            what = f"redis {test.upper()}, {clients} clients"
            rows += [(redis_programs, what, "per second", redis, requests, test, clients),
                     (redis_programs, f"{what}, 16 at a time", "per second", redis, pipelined, test, clients,
                      "-P", "16")]
    rows += [(redis_programs, "redis GET, 50 clients, which run without Verbena", "per second",
              redis_with_plain_client, requests, "get", 50),
             (("memcached", "memcslap"), "memcached GET, 8 clients", "per second", memcached, requests),
             ((f"{POSTGRES}/postgres", "setpriv"), "pgbench, select only, 8 clients", "per second", pgbench, seconds),
             (("nginx", "wrk"), "nginx and wrk, 612 B, 50 connections", "per second", nginx, seconds, 612),
             (("nginx", "wrk"), "nginx and wrk, 64 KiB, 50 connections", "per second", nginx, seconds, 65536),
             (("nginx", "wrk"), "nginx and wrk, 612 B, a connection for each request", "per second", nginx, seconds,
              612, "-H", "Connection: close")]
    return rows
