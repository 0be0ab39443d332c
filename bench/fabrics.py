"""Measures simulated InfiniBand subnets: their start under OpenSM, their memory, and the speed over switches."""
import json
import time

import measure
from measure import Row, memory_kib
from subnet import Fabric

GROUP = "Simulated subnets under OpenSM"
PORT = 18603


class MeasuredFabric(Fabric):
    """Starts a fabric, and measures how long the start takes.  Does not wait until all SA clients are idle."""

    def __enter__(self):
        start = time.monotonic()
        self.run_verbena("fabric", "up", self.file.name, "--name", self.name)
        self.seconds = time.monotonic() - start
        status = json.loads(self.run_verbena("fabric", "show", self.name, "--json"))["fabric"]
        self.nodes = [host["name"] for host in status["hosts"]]
        self.pid = status["pid"]
        return self


def client_output(fabric, server, client, command):
    """Runs the two ends of a program on two nodes.  Returns the client's output."""
    def command_on(node):
        return [fabric.verbena, "run", "--fabric", fabric.name, "--node", node, "--", *command]
    with measure.Server(command_on(server), fabric.environment, PORT):
        return measure.output_of([*command_on(client), "127.0.0.1"], env=fabric.environment)


def half_round_trip(fabric, server, client, count, *options):
    output = client_output(fabric, server, client,
                           ["ibv_rc_pingpong", "-p", str(PORT), "-s", "64", "-n", str(count), *options])
    return measure.pingpong_us(output) / 2


def bandwidth(fabric, server, client, count):
    output = client_output(fabric, server, client,
                           ["ib_write_bw", "-F", "-s", "65536", "-n", str(count), "-p", str(PORT), "--report_gbits"])
    return measure.gbits(measure.perftest_numbers(output, 1 << 16)[2], 1 << 16)


def fabrics(bench):
    for hosts in (3, 16, 128, 1024):
        if hosts > 16 and bench.scale < 0.1:
            continue
        seconds, resident = [], []
        for _ in range(bench.rounds):
            with MeasuredFabric(bench, hosts) as fabric:
                seconds.append(fabric.seconds)
                resident.append(memory_kib(fabric.pid)[1] / 1024)
        yield Row(GROUP, f"{hosts:,} hosts: from `fabric up` until all ports are active", "s", seconds)
        yield Row(GROUP, f"{hosts:,} hosts: memory of the fabric", "MiB RSS", resident)
    with MeasuredFabric(bench, 16) as fabric:
        ends = {"one switch": ("host1", "host2"), "three switches": ("host1", "host16")}
        for name, options in (("polling", ()), ("events", ("-e",))):
            count = bench.scaled(3000)
            near, *hops = bench.in_turn(
                lambda: half_round_trip(fabric, "host1", "host1", count, *options),
                *(lambda pair=pair: half_round_trip(fabric, *pair, count, *options) for pair in ends.values()))
            for route, figures in zip(ends, hops):
                yield Row(GROUP, f"SEND of 64 B through {route}, half round trip, {name}", "us", figures,
                          "two programs of one host", near)
        near, *hops = bench.in_turn(
            lambda: bandwidth(fabric, "host1", "host1", bench.scaled(5000)),
            *(lambda pair=pair: bandwidth(fabric, *pair, bench.scaled(5000)) for pair in ends.values()))
        for route, figures in zip(ends, hops):
            yield Row(GROUP, f"WRITE of 64 KiB through {route}", "Gbit/s", figures, "two programs of one host", near)
