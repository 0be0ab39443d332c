"""Measures the SA client: the start of jobs, in virtual time and under OpenSM, and the calls of one program."""
import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import tempfile
import time

import measure
from measure import Failed, Row, output_of

MODES = ("get", "table", "uncached")
ROUTE_WINDOW = 16  # connections that a process makes at once, as in job_start


class Fabric:
    """Runs a fabric while the context is active: an InfiniBand subnet under OpenSM, or hosts on Ethernet."""

    def __init__(self, bench, hosts, mode="get", subnet=True, name="bench"):
        self.bench = bench
        self.verbena = str(bench.prefix / "bin/verbena")
        self.name = name
        self.environment = {**bench.verbena_environment, "VERBENA_SA": mode}
        self.environment.pop("VERBENA_LINK", None)  # programs on a fabric need lanes
        self.mode = mode
        self.subnet = subnet
        arguments = ["--fat-tree", str(hosts)] if subnet else ["--hosts", str(hosts)]
        self.file = tempfile.NamedTemporaryFile("w", suffix=".net" if subnet else ".toml")
        self.file.write(self.run_verbena("fabric", "make", *arguments))
        self.file.flush()

    def __enter__(self):
        self.run_verbena("fabric", "up", self.file.name, "--name", self.name)
        status = json.loads(self.run_verbena("fabric", "show", self.name, "--json"))["fabric"]
        self.nodes = [host["name"] for host in status["hosts"]]
        self.addresses = [host["rails"][0]["addresses"][0] for host in status["hosts"]]
        if self.subnet:
            measure.wait_until("OpenSM to answer all nodes", self.is_idle, 120)
        return self

    def __exit__(self, *_):
        self.run_verbena("fabric", "down", self.name)
        self.file.close()

    def run_verbena(self, *words):
        """Runs the command verbena with these arguments.  Returns its output."""
        return output_of([self.verbena, *words], env=self.environment)

    def on(self, node, program, *words):
        """Returns the command that runs the program on the node."""
        return [self.verbena, "run", "--fabric", self.name, "--node", node, "--", self.bench.program(program),
                *map(str, words)]

    def is_idle(self):
        """Returns True if the SA clients of all nodes have loaded their tables, and wait for no reply."""
        now = self.counters()
        has_tables = self.mode != "table" or now["sa_path_tables"] + now["sa_path_table_failures"] >= len(self.nodes)
        return has_tables and now["sa_queries"] == sum(
            now[f"sa_queries_{end}"] for end in ("answered", "refused", "timed_out", "cancelled"))

    def counters(self):
        """Returns the counters of the SA clients, summed over the nodes."""
        def counters_of(node):
            output = self.run_verbena("sa", "stats", "--json", "--fabric", self.name, "--node", node)
            return json.loads(output)["counters"]
        total = {}
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for stats in pool.map(counters_of, self.nodes):
                for name, value in stats.items():
                    total[name] = total.get(name, 0) + value
        return total


def all_to_all(fabric, times, window=ROUTE_WINDOW):
    """Connects each host to all others.  Returns the seconds until the last route was resolved and until the last
    connection was made, the number of tables that were loaded before, and the increase of the SA clients' counters."""
    with contextlib.ExitStack() as stack:
        hosts = [stack.enter_context(measure.Holder(
            fabric.on(node, "all_to_all", times, window, rank, *fabric.addresses), env=fabric.environment))
            for rank, node in enumerate(fabric.nodes)]
        for host in hosts:
            host.read_words()
        before = fabric.counters() if fabric.subnet else {}
        start = time.monotonic()
        for host in hosts:
            host.send_line()
        ends = [[float(word) for word in host.read_words()[1:]] for host in hosts]
        after = fabric.counters() if fabric.subnet else {}
    return {"routes": max(end[0] for end in ends) - start, "connected": max(end[1] for end in ends) - start,
            "tables": before.get("sa_path_tables", 0),
            "counters": {name: value - before.get(name, 0) for name, value in after.items()}}


def jobs_under_opensm(bench, hosts, times):
    """Starts a job twice in each mode.  Yields a dict for each start."""
    for mode in MODES:
        with Fabric(bench, hosts, mode) as fabric:
            for run in (1, 2):
                job = all_to_all(fabric, times)
                yield {"mode": mode, "run": run, "hosts": hosts, "times": times,
                       "connections": hosts * (hosts - 1) * times, "queries": job["counters"]["sa_queries"],
                       "tables": job["tables"] if run == 1 else 0,
                       "seconds": job["routes"], "connected": job["connected"]}


def simulated(bench, **plan):
    words = [f"{name}={value}" for name, value in plan.items()]
    done = subprocess.run([bench.program("job_start"), *words], env=bench.environment, capture_output=True,
                          text=True, timeout=3600)
    if not done.stdout.startswith("{"):
        raise Failed(f"job_start {' '.join(words)}: {done.stderr}")
    return json.loads(done.stdout)


def sa(bench):
    """Measures one program with the path cache, without the cache, and on Ethernet."""
    group = "The SA client"
    count = bench.scaled(1000)
    with contextlib.ExitStack() as stack:
        def routes(fabric):
            output = output_of(fabric.on(fabric.nodes[0], "subnet", "routes", count, fabric.addresses[1]),
                               env=fabric.environment)
            return [float(word) for word in output.split()]

        def connections(fabric):
            times = bench.scaled(1000)
            return 2 * times / all_to_all(fabric, times)["connected"]

        def groups(fabric):
            output = output_of(fabric.on(fabric.nodes[1], "subnet", "groups", bench.scaled(200), fabric.addresses[1]),
                               env=fabric.environment)
            return float(output)

        def figures_of(fabric):
            return (*routes(fabric), connections(fabric))

        cached, uncached, roce = (stack.enter_context(Fabric(bench, 2, *how)) for how in (
            ("get", True, "bench-cached"), ("uncached", True, "bench-uncached"), ("get", False, "bench-roce")))
        names = ("cached", "uncached", "roce")
        found = dict(zip(names, bench.in_turn(*(lambda fabric=fabric: figures_of(fabric)
                                                for fabric in (cached, uncached, roce)))))
        joins = [groups(cached) for _ in range(bench.rounds)]
    address, route, rate = ({name: [one[i] for one in rounds] for name, rounds in found.items()} for i in range(3))
    both = {name: [a + b for a, b in zip(address[name], route[name])] for name in found}
    for peer, title in (("uncached", "a query to OpenSM"), ("roce", "a RoCE fabric")):
        yield Row(group, "rdma_resolve_addr() and rdma_resolve_route(), known path", "us", both["cached"], title, both[peer])
        yield Row(group, "rdma_resolve_route() alone, known path", "us", route["cached"], title, route[peer])
        yield Row(group, "connections, both ways, 16 at a time", "per second", rate["cached"], title, rate[peer])
    yield Row(group, "groups of a program, joined and left one after the other", "per second", joins)
