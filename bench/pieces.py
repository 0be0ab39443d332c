"""Defines the benchmarks.  Each function in ALL yields the rows (measure.Row) of one benchmark."""
import json
import os
import pathlib
import re
import shutil
import subprocess

import measure
import network
from fabrics import fabrics
from host_peers import host_peers
from measure import Failed, Row, memory_kib, output_of
from tcp_programs import tcp_programs

PINGPONG_PORT = 18515


class Bench:
    """Holds the directory of the programs, their environments, the number of rounds, and the scale of each round."""

    def __init__(self, prefix, rounds, scale, preload=""):
        self.prefix = pathlib.Path(prefix)
        self.rounds = rounds
        self.scale = scale  # multiplies the numbers of messages and connections
        self.sanitized = bool(preload)
        self.environment = dict(os.environ)
        self.verbena_environment = dict(self.environment)
        if preload:  # a sanitizer's runtime, which must be loaded before all other libraries
            for environment in (self.environment, self.verbena_environment):
                environment["ASAN_OPTIONS"] = "detect_leaks=0:verify_asan_link_order=0"
            self.verbena_environment["LD_PRELOAD"] = preload

    def program(self, name):
        return str(self.prefix / "bench" / name)

    def run_command(self, *command, link="lane"):
        """Returns the command that runs `command` under `verbena run`."""
        return [str(self.prefix / "bin/verbena"), "run", "--link", link, "--", *command]

    def scaled(self, number):
        """Returns the number of messages or connections for this run's scale."""
        return max(1, int(number * self.scale))

    def agent_pid(self, hosts=None, host=None):
        command = [str(self.prefix / "bin/verbena"), "agent", "status", "--json"]
        status = output_of(hosts.on(host, *command) if hosts else command, env=self.verbena_environment)
        return json.loads(status)["agent"]["pid"]

    def stop_agent(self):
        subprocess.run([str(self.prefix / "bin/verbena"), "agent", "stop"], env=self.verbena_environment,
                       capture_output=True, timeout=measure.TIMEOUT_SECONDS)

    def in_turn(self, *runs):
        """Calls each of `runs` once in every round.  Returns a list of figures for each of them."""
        figures = [[] for _ in runs]
        for _ in range(self.rounds):
            for values, run in zip(figures, runs):
                values.append(measure.measured(run))
        return figures


def client_output(bench, command, port):
    """Runs a program as server (without an address) and as client.  Returns the client's output."""
    with measure.Server(command, bench.verbena_environment, port):
        return output_of([*command, "127.0.0.1"], env=bench.verbena_environment)


# ---- ping-pong ----------------------------------------------------------------------------------

LINKS = {"lane": "through shared memory", "udp": "through loopback (run --link udp)"}


def rc_pingpong(bench, link, size, count, *options):
    """Returns microseconds for each round, as printed by ibv_rc_pingpong's client."""
    command = bench.run_command("ibv_rc_pingpong", "-g", "0", "-p", str(PINGPONG_PORT), "-s", str(size),
                        "-n", str(count), *options, link=link)
    output = client_output(bench, command, PINGPONG_PORT)
    return measure.pingpong_us(output)


def socket_pingpong(bench, kind, how, size, count):
    return float(output_of([bench.program("sockets"), "pingpong", kind, how, str(size),
                            str(count)], env=bench.environment))


def pingpong(bench):
    for link in LINKS:
        yield from pingpong_by(bench, link)


def pingpong_by(bench, link):
    group = f"Ping-pong, there and back, {LINKS[link]}"
    for size, count, options, how, peers in (
            (64, 5000, (), "poll", ("tcp", "udp")),
            (4096, 5000, (), "poll", ("tcp", "udp")),
            (64, 3000, ("-e",), "block", ("tcp", "udp")),
            (4096, 3000, ("-e",), "block", ("tcp", "udp")),
            (1 << 20, 300, (), "poll", ("tcp",)),
            (1 << 20, 300, ("-m", "4096"), "poll", ("tcp",)),
            (1 << 20, 300, ("-m", "4096", "-e"), "block", ("tcp",))):
        times = bench.scaled(count)
        ours, *theirs = bench.in_turn(
            lambda: rc_pingpong(bench, link, size, times, *options),
            *(lambda kind=kind: socket_pingpong(bench, kind, how, size, times) for kind in peers))
        name = f"{size if size < 1 << 20 else '1 Mi'} B, {'polling' if how == 'poll' else 'events'}"
        name += ", MTU 4096" if "-m" in options else ""
        for kind, values in zip(peers, theirs):
            peer = f"{kind.upper()}, {'polling' if how == 'poll' else 'blocking'}"
            yield Row(group, name, "us", ours, peer, values)
        if size == 1 << 20:
            both = [[2 * size * 8 / us / 1000 for us in values] for values in (ours, theirs[0])]
            yield Row(group, name, "Gbit/s", both[0], peer, both[1])


# ---- between two hosts ---------------------------------------------------------------------------

def two_hosts(bench):
    group = "Between two hosts (namespaces, and a cable in user space, MTU 1500)"
    big = 1 << 18
    with network.Hosts(bench.prefix, 1500) as hosts:
        def in_turn(size, rounds):
            runs = [(network.rdma(bench, hosts, size, rounds), network.tcp(bench, hosts, size, rounds))
                    for _ in range(bench.rounds)]
            return [[run[who][what] for run in runs] for what in (0, 1) for who in (0, 1)]

        hosts.set_faults("tcp=1")
        ours, theirs, *_ = in_turn(64, bench.scaled(1000))
        yield Row(group, "64 B, half round trip", "us", [us / 2 for us in ours], "TCP, blocking",
                  [us / 2 for us in theirs])
        for loss in ("0", "0.1", "1", "10"):
            hosts.set_faults(f"tcp=1 loss={loss}")
            ours, theirs, *frames = in_turn(big, bench.scaled(20 if loss == "10" else 100))
            what = f"256 KiB to and fro, {loss} % lost each way"
            both = [[2 * big * 8 / us / 1000 for us in values] for values in (ours, theirs)]
            yield Row(group, what, "Gbit/s", both[0], "TCP, blocking", both[1])
            yield Row(group, what, "frames", frames[0], "TCP, blocking", frames[1])
        long = 8 << 20
        for delay in (2, 5):
            hosts.set_faults(f"tcp=1 delay={delay}")
            ours, theirs, *_ = in_turn(long, bench.scaled(20))
            both = [[2 * long * 8 / us / 1000 for us in values] for values in (ours, theirs)]
            yield Row(group, f"8 MiB to and fro, {delay} ms each way", "Gbit/s", both[0], "TCP, blocking", both[1])


# ---- many into one -------------------------------------------------------------------------------

def write_bandwidth(bench, qps, count):
    """Returns Gbit/s of ib_write_bw over loopback."""
    port = 18600
    command = bench.run_command("ib_write_bw", "-d", "verbena0", "-x", "0", "-m", "4096", "-s", str(1 << 16),
                        "-q", str(qps), "-n", str(count), "-F", "-p", str(port), "--report_gbits",
                        link="udp")
    output = client_output(bench, command, port)
    return measure.gbits(measure.perftest_numbers(output, 1 << 16)[2], 1 << 16)


# ---- perftest ------------------------------------------------------------------------------------

def perftest(bench):
    """Measures latencies and bandwidths with perftest's programs."""
    if not shutil.which("ib_send_lat"):
        print("perftest is left out: it is not installed (scripts/deps test)")
        return
    for link in LINKS:
        yield from perftest_by(bench, link)


def perftest_by(bench, link):
    group = f"perftest, {LINKS[link]}"
    port = 18601

    def numbers_of(program, size, count, mtu):
        command = bench.run_command(program, "-d", "verbena0", "-x", "0", "-m", mtu, "-s", str(size), "-n",
                            str(count), "-F", "-p", str(port), "--report_gbits",
                            link=link)
        output = client_output(bench, command, port)
        return measure.perftest_numbers(output, size)

    for program in ("ib_send_lat", "ib_write_lat", "ib_read_lat"):
        times = bench.scaled(3000)
        ours, tcp, udp = bench.in_turn(
            lambda: numbers_of(program, 64, times, "1024")[2],
            lambda: socket_pingpong(bench, "tcp", "poll", 64, times) / 2,
            lambda: socket_pingpong(bench, "udp", "poll", 64, times) / 2)
        what = f"{program}, 64 B" + ("" if program == "ib_read_lat" else ", half round trip")
        if program == "ib_read_lat":  # the latency of a READ is a whole round trip
            tcp, udp = ([2 * us for us in values] for values in (tcp, udp))
        yield Row(group, what, "us, typical", ours, "TCP, polling", tcp)
        yield Row(group, what, "us, typical", ours, "UDP, polling", udp)
    size = 1 << 16
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        times = bench.scaled(3000)
        ours, tcp = bench.in_turn(
            lambda: measure.gbits(numbers_of(program, size, times, "4096")[2], size),
            lambda: 2 * size * 8 / 1000 / socket_pingpong(bench, "tcp", "poll", size, times))
        yield Row(group, f"{program}, 64 KiB, MTU 4096", "Gbit/s", ours,
                  "TCP, to and fro", tcp)
    small = 64
    for program in ("ib_send_bw", "ib_write_bw"):
        times = bench.scaled(100_000)
        ours, udp = bench.in_turn(
            lambda: numbers_of(program, small, times, "1024")[2],
            lambda: 2 / socket_pingpong(bench, "udp", "poll", small, bench.scaled(5000)))
        yield Row(group, f"{program}, 64 B", "million messages/s", ours,
                  "UDP, to and fro", udp)


def incast(bench):
    if not shutil.which("ib_write_bw"):
        print("incast is left out: perftest is not installed (scripts/deps test)")
        return
    one, many = bench.in_turn(lambda: write_bandwidth(bench, 1, bench.scaled(4000)),
                              lambda: write_bandwidth(bench, 16, bench.scaled(4000)))
    yield Row("Many into one socket buffer of 212,992 bytes", "WRITE of 64 KiB, 16 queue pairs, MTU 4096",
              "Gbit/s", many, "one queue pair", one)


# ---- beside the kernel's soft-RoCE --------------------------------------------------------------

def guest(bench):
    source = pathlib.Path(__file__).resolve().parent.parent
    image = source / "build/linux-image"
    if not (image / "initrd").exists() or not shutil.which("qemu-system-x86_64"):
        print("guest is left out: there is no Linux machine (tests/interop/linux/image.py), or no QEMU")
        return
    rounds = max(1, bench.rounds // 2)
    environment = {**bench.environment, "VB_PREFIX": str(bench.prefix), "VB_SOURCE": str(source),
                   "VB_LINUX": str(image), "VB_PRELOAD": ""}
    done = subprocess.run(["bash", str(source / "tests/interop/linux/bench.sh"), str(rounds)],
                          env=environment, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          timeout=120 + 120 * rounds)
    found = re.findall(r"^(rxe|verbena) (\w+) ([\d.]+)$", done.stdout, re.M)
    if done.returncode != 0 or len(found) != 4 * rounds:
        raise Failed(f"tests/interop/linux/bench.sh: {done.stdout[-400:]} {done.stderr[-400:]}")
    for program, what, unit in (("ib_send_lat", "ib_send_lat, 64 B, half round trip", "us"),
                                ("ib_write_bw", "ib_write_bw, 64 KiB", "MB/s")):
        ours, theirs = ([float(value) for who, which, value in found if (who, which) == (wanted, program)]
                        for wanted in ("verbena", "rxe"))
        yield Row("Beside the kernel's soft-RoCE, in an emulated machine of one CPU", what, unit, ours,
                  "rdma_rxe", theirs)


# ---- connections --------------------------------------------------------------------------------

def connect(bench):
    def numbers(command, environment):
        return [float(word) for word in output_of(command, env=environment).split()]

    kinds = (("one after the other", 300, 1, 1), ("16 at a time", 2000, 16, 1),
             ("64 at a time", 20000, 64, 1),
             ("4 processes, 16 each", 16000, 16, 4))

    def rows(where, on, *server):
        for what, count, together, processes in kinds:
            words = ["connect", str(bench.scaled(count)), str(together), str(processes), *server]
            ours, tcp = bench.in_turn(
                lambda: numbers(on(bench.run_command(bench.program("connections"), *words)), bench.verbena_environment),
                lambda: numbers(on([bench.program("sockets"), *words]), bench.environment))
            for unit, *both in zip(("per second", "wake-ups for each"), zip(*ours), zip(*tcp)):
                yield Row(f"Connections, {where}", what, unit, both[0], "TCP", both[1])

    def latency(ends, how):
        words = ["latency", how, str(bench.scaled(2000))]
        ours, tcp = bench.in_turn(
            lambda: numbers(bench.run_command(bench.program("connections"), *words), bench.verbena_environment),
            lambda: numbers([bench.program("sockets"), *words], bench.environment))
        for what, unit, *both in zip(("connect alone", "all of it", "wake-ups for all of it"),
                                     ("us", "us", "wake-ups"), zip(*ours), zip(*tcp)):
            if min(both[1]) > 0:  # no ratio if TCP's figure is 0: polling TCP programs have no wake-ups
                yield Row("One connection, loopback", f"both ends {ends}: {what}", unit, both[0], "TCP", both[1])
            else:
                yield Row("One connection, loopback", f"both ends {ends}: {what}", unit, both[0])

    yield from latency("wait", "block")
    yield from latency("poll", "poll")
    yield from rows("loopback", lambda command: command)
    with network.VethHosts(bench.prefix, 1500) as hosts:
        yield from rows("two network namespaces", lambda command: hosts.on("a", *command),
                        f"/proc/{hosts.pids[1]}/ns/net", "10.77.0.2")
    yield from scaling(bench, kinds[2:], numbers)


def scaling(bench, kinds, numbers):
    """Compares the speed on all processors with that on one.  The two cases have hosts of their own, because the
    agents must run on the processors of the programs."""
    usable = os.sched_getaffinity(0)
    if len(usable) == 1:
        print("connections on one processor and on all are left out: there is one")
        return
    only = ["taskset", "--cpu-list", str(min(usable))]
    group = "Connections on more processors, two network namespaces"

    def place_agents(hosts):  # taskset of a program does not affect its agent, so this moves the agents
        for host in "ab":
            output_of(hosts.on(host, *bench.run_command(bench.program("connections"), "latency", "block", "1")),
                      env=bench.verbena_environment)
            output_of([only[0], "--all-tasks", "--pid", *only[1:], str(bench.agent_pid(hosts, host))])

    def run(hosts, words, program, *prefix):
        return numbers(hosts.on("a", *prefix, *program, *words, f"/proc/{hosts.pids[1]}/ns/net", "10.77.0.2"),
                       bench.verbena_environment)[0]

    def run_on_one(hosts, words, program):
        place_agents(hosts)
        return run(hosts, words, program, *only)

    with network.VethHosts(bench.prefix, 1500) as anywhere, network.VethHosts(bench.prefix, 1500) as on_one:
        for what, count, together, processes in kinds:
            words = ["connect", str(bench.scaled(count)), str(together), str(processes)]
            ours, tcp = bench.run_command(bench.program("connections")), [bench.program("sockets")]
            many, one, tcp_many, tcp_one = bench.in_turn(
                lambda: run(anywhere, words, ours), lambda: run_on_one(on_one, words, ours),
                lambda: run(anywhere, words, tcp), lambda: run(on_one, words, tcp, *only))
            yield Row(group, f"{what}, on {len(usable)}", "per second", many, "Verbena on one", one)
            yield Row(group, f"{what}: TCP, on {len(usable)}", "per second", tcp_many, "TCP on one", tcp_one)


def cmtime(bench):
    """Runs rdma-core's cmtime, which finishes each step for all connections before the next step."""
    if not shutil.which("cmtime"):
        print("cmtime is left out: it is not installed (scripts/deps test)")
        return
    verbena = str(bench.prefix / "bin/verbena")
    count = bench.scaled(10_000)
    steps = {}
    for _ in range(bench.rounds):
        server = subprocess.Popen(bench.run_command("cmtime", "-b", "127.0.0.1"), env=bench.verbena_environment,
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            measure.wait_until("cmtime's server", lambda: server.poll() is not None or re.search(
                r"listening.*:7471\b", output_of([verbena, "ps"], env=bench.verbena_environment)))
            output = output_of(bench.run_command("cmtime", "-s", "127.0.0.1", "-c", str(count)),
                               env=bench.verbena_environment)
        finally:
            server.kill()
            server.wait()
        found = re.findall(r"^(\w[\w ]*?) *:(?: +[\d.]+){3} +([\d.]+)$", output, re.M)
        if not found:
            raise Failed(f"cmtime did not say how long it took: {output}")
        for step, each in found:
            steps.setdefault(step, []).append(float(each))
    for step, each in steps.items():
        yield Row(f"cmtime -c {count}, over loopback", step, "us for each", each)


# ---- start --------------------------------------------------------------------------------------

def spawn_time(bench, command, environment=None):
    return float(output_of([bench.program("spawn"), "1", *command],
                           env=environment or bench.environment))


def start(bench):
    ours = bench.run_command(bench.program("first_device"))

    def without_agent():
        bench.stop_agent()
        return spawn_time(bench, ours, bench.verbena_environment)

    def debian_time():
        return spawn_time(bench, [bench.program("first_device")])

    def true_time():
        return spawn_time(bench, ["/bin/true"])

    rounds, bench.rounds = bench.rounds, bench.scaled(20)
    try:
        # The order is important, because the second call uses the agent that the first call has started.
        own_agent, running_agent, debian_times, true_times = bench.in_turn(
            without_agent, lambda: spawn_time(bench, ours, bench.verbena_environment), debian_time, true_time)
    finally:
        bench.rounds = rounds
    group = "Start of a program, its first ibv_get_device_list, and its end"
    for what, values in (("agent running", running_agent), ("agent started by it", own_agent)):
        yield Row(group, what, "us", values, "Debian's libibverbs", debian_times)
        yield Row(group, what, "us", values, "/bin/true", true_times)


# ---- memory -------------------------------------------------------------------------------------

def memory(bench):
    group = "Memory"
    programs, agents, plain = [], [], []
    for _ in range(bench.rounds):
        bench.stop_agent()
        with measure.Holder(bench.run_command(bench.program("first_device"), "hold"),
                            env=bench.verbena_environment) as holder:
            holder.read_words()
            programs.append(memory_kib(holder.process.pid)[0])
            agents.append(memory_kib(bench.agent_pid())[0])
        with measure.Holder([bench.program("first_device"), "hold"],
                            env=bench.environment) as holder:
            holder.read_words()
            plain.append(memory_kib(holder.process.pid)[0])
    yield Row(group, "program that has seen the device", "KiB PSS", programs,
              "Debian's libibverbs", plain)
    yield Row(group, "agent of one such program", "KiB PSS", agents)
    steps = [str(bench.scaled(n)) for n in (1, 250, 500, 1000)]
    yield from growth(bench, group, "QP (RC, 16 + 16 requests)", "queue_pairs", steps)
    yield from growth(bench, group, "connection of librdmacm (with such a QP)", "connections", steps, "hold")
    yield from crowd(bench, group, bench.scaled(100_000))


def crowd(bench, group, count):
    """Measures the whole memory of a program with many idle QPs, and the whole memory of its agent."""
    programs, agents = [], []
    for _ in range(bench.rounds):
        bench.stop_agent()
        with measure.Holder(bench.run_command(bench.program("queue_pairs"), str(count)),
                            env=bench.verbena_environment) as holder:
            holder.read_words()
            programs.append(memory_kib(holder.process.pid)[1] / 1024)
            agents.append(memory_kib(bench.agent_pid())[1] / 1024)
    what = f"{count:,} QPs (RC, 16 + 16 requests)"
    yield Row(group, f"{what}: program, all of it", "MiB RSS", programs)
    yield Row(group, f"{what}: agent, all of it", "MiB RSS", agents)


def growth(bench, group, what, program, steps, *how):
    """Measures memory while a program creates more and more objects.  Yields the memory of one object."""
    slopes = {}
    for _ in range(bench.rounds):
        points = {}
        bench.stop_agent()
        with measure.Holder(bench.run_command(bench.program(program), *how, *steps),
                            env=bench.verbena_environment) as holder:
            for _ in steps:
                words = holder.read_words()
                count, pids = int(words[1]), dict(zip(words[2::2], map(int, words[3::2])))
                for role, pid in (*pids.items(), ("agent", bench.agent_pid())):
                    points.setdefault(role, []).append((count, memory_kib(pid)[1]))
                holder.send_line()
        for role, role_points in points.items():
            slopes.setdefault(role, []).append(measure.slope(role_points))
    for role, values in slopes.items():
        yield Row(group, f"each {what}: {role}", "KiB RSS", values)


# ---- hot paths ----------------------------------------------------------------------------------

def micro(bench):
    if not os.path.exists(bench.program("micro")):
        print("micro is not built: libbenchmark-dev is not installed (scripts/deps test)")
        return
    found = {}
    output = output_of([bench.program("micro"), "--benchmark_format=json",
                        f"--benchmark_repetitions={bench.rounds}",
                        f"--benchmark_min_time={0.2 * bench.scale}",
                        "--benchmark_enable_random_interleaving=true"], env=bench.environment)
    for run in json.loads(output)["benchmarks"]:
        if run.get("error_occurred"):
            raise Failed(f"{run['name']}: {run['error_message']}")
        if run["run_type"] == "iteration":
            found.setdefault(run["run_name"], []).append(run["cpu_time"])
    for size in (64, 1024, 4096):
        for what in ("seal", "open"):
            yield Row("Hot paths alone", f"{what} (ICRC) of {size} B", "ns", found[f"{what}/{size}"],
                      f"memcpy of {size} B", found[f"copy/{size}"])
    for what, name in (("poll of an empty CQ, no link", "empty_poll"),
                       ("message of 64 B, both engines, no link", "message/64"),
                       ("message of 4096 B, both engines, no link", "message/4096")):
        yield Row("Hot paths alone", what, "ns", found[name], "a system call", found["system_call"])


# ---- instructions -------------------------------------------------------------------------------

def instructions(bench):
    if shutil.which("valgrind") is None:
        print("valgrind is not installed (scripts/deps test): no instructions are counted")
        return
    if bench.sanitized:
        print("instructions are not counted under a sanitizer")
        return
    times = bench.scaled(500)

    def count(what, size):
        """Returns the instructions of one call, with all functions that it calls."""
        done = subprocess.run(
            bench.run_command("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null",
                      "--toggle-collect=*counted*", bench.program("instructions"), what,
                      str(times), str(size)),
            env=bench.verbena_environment, capture_output=True, text=True, timeout=measure.TIMEOUT_SECONDS)
        found = re.search(r"Collected : (\d+)", done.stderr)
        if done.returncode != 0 or not found:
            raise Failed(f"callgrind did not count: {done.stdout} {done.stderr}")
        return int(found.group(1)) / times

    group = "Instructions"
    for name, what, size in (("SEND of 64 B: the call, with its packet", "send", 64),
                             ("SEND of 4096 B: the call, with its packet", "send", 4096),
                             ("poll of an empty CQ", "poll", 64),
                             ("poll of a CQ with one completion", "full", 64)):
        yield Row(group, name, "instructions", [count(what, size) for _ in range(bench.rounds)])


ALL = {"pingpong": pingpong, "perftest": perftest, "host_peers": host_peers, "two_hosts": two_hosts,
       "incast": incast, "fabrics": fabrics, "tcp_programs": tcp_programs, "guest": guest, "connect": connect, "cmtime": cmtime,
       "start": start, "memory": memory, "micro": micro, "instructions": instructions}
