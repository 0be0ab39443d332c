"""Measures the start of jobs and the SA client, and writes the section of docs/benchmarks.md about them."""
import json
import os
import re

import job_picture
import measure
import subnet
from measure import Failed, Row, output_of

BEGIN, END = "<!-- job start: begin -->", "<!-- job start: end -->"
PROCESSES = 4
# Limits jobs without the cache.  Larger ones would take many minutes, and would only repeat the same queries.
UNCACHED_HOSTS_MAX = 1024
FAULTS = (("none", {}), ("answers one request in three", {"deaf": 67}), ("says BUSY to one in three", {"busy": 33}),
          ("20 times as slow", {"request_ns": 1_000_000, "record_ns": 10_000}))

TEXT = """\
## Job start

N hosts connect all to all ([bench/job_start.cc](../bench/job_start.cc)). Time is virtual. The clients are the real
`sa::Client`; the manager is a model ([src/sa/job_manager_test.h](../src/sa/job_manager_test.h)), because the builtin
subnet manager has no SA. It serves one request after another: 50 us for a request, and 0.5 us for each record of a table.
All ports come up and begin at the same moment, so the subscriptions to notices are in its queue, too.
Each host has {processes} processes, each of which connects to all other hosts, 16 at a time. Queries are about paths,
and each is counted once. "Sent" also counts subscriptions and repeats.
"CPU seconds" and "MiB" are what the simulation itself needs, with the caches of all hosts.

![Queries and seconds by hosts, on logarithmic scales.](job_start.svg)

* With a query for each destination (`get`, the default) a host asks about each of the N - 1 others once.
  So all hosts together send at least N x (N - 1) queries. The cache avoids further ones: the number of queries does not
  grow with processes, connections or later jobs.
* With one GetTable for each host (`table`) the queries grow as N. The records still grow as N x N.
* Without the cache, as in Linux, each connection sends a query. A second job queries all paths again.
"""

SA_TEXT = """\
## The SA client

`rdma_resolve_addr()` queries the path, so `rdma_resolve_route()` sends no query. The peer "a query to OpenSM" is the
same program with `VERBENA_SA=uncached`. The RoCE fabric has no SA, so there are no queries.
"""


def numbers(value, digits=0):
    return f"{value:,.{digits}f}"


def table_of(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|---" + "|---:" * (len(head) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def sizes(bench):
    return [n for n in (16, 64, 256, 1024, 4096) if n <= max(16, 4096 * bench.scale)]


def simulated_jobs(bench):
    for mode in subnet.MODES:
        for hosts in sizes(bench):
            if mode != "uncached" or hosts <= UNCACHED_HOSTS_MAX:
                yield subnet.simulated(bench, mode=mode, hosts=hosts, processes=PROCESSES)


def simulated_text(jobs):
    rows = [(f"{job['mode']}, {job['hosts']:,}", numbers(job["routes"]), numbers(job["queries"]), numbers(job["sent"]),
             numbers(job["seconds"], 2), numbers(job["real_cpu_seconds"], 1), numbers(job["real_mib"])) for job in jobs]
    return table_of(("mode, hosts", "connections", "queries", "sent", "seconds", "CPU seconds", "MiB"), rows)


def fault_text(bench):
    hosts = min(256, sizes(bench)[-1])
    rows = []
    for mode in ("get", "table"):
        for name, words in FAULTS:
            job = subnet.simulated(bench, mode=mode, hosts=hosts, processes=PROCESSES, **words)
            rows.append((f"{mode}: {name}", numbers(job["queries"]), numbers(job["served"]), numbers(job["sent"]),
                         numbers(job["failed"]), numbers(job["seconds"], 2)))
    return (f"The manager has a fault; {hosts} hosts. \"Served\" counts the queries about paths that it answered.\n"
            "If the manager answers one request in three, each request is sent three times on average.\n\n" +
            table_of(("mode: manager", "queries", "served", "sent", "routes that failed", "seconds"), rows))


def real_text(bench):
    hosts, times = (64, 4) if bench.scale >= 0.2 else (4, 2)
    rows = [(f"{job['mode']}, {'first' if job['run'] == 1 else 'second'} job", numbers(job["connections"]),
             numbers(job["queries"]), numbers(job["tables"]), numbers(job["seconds"], 2), numbers(job["connected"], 2))
            for job in subnet.jobs_under_opensm(bench, hosts, times)]
    return (f"The same with real programs: {hosts} hosts of a fat tree under OpenSM, each with {times} connections to each\n"
            "other one ([bench/all_to_all.cc](../bench/all_to_all.cc)). Everything shares this machine's processors, so\n"
            "the connections themselves take most of the time. Tables were loaded when the ports became active.\n"
            "Without the cache, the IPoIB interface still asks for its own paths to reply to ARP.\n\n" +
            table_of(("mode", "connections", "queries of the job", "tables before it", "seconds to the last route",
                      "seconds to the last connection"), rows))


def cache_rows(bench):
    """Returns rows about the path cache itself, measured in one process."""
    group = "The SA client"
    if not os.path.exists(bench.program("micro")):
        return
    found, memory = {}, []
    output = output_of([bench.program("micro"), "--benchmark_format=json", "--benchmark_filter=path|system_call",
                        f"--benchmark_repetitions={bench.rounds}", f"--benchmark_min_time={0.2 * bench.scale}"],
                       env=bench.environment)
    for run in json.loads(output)["benchmarks"]:
        if run.get("error_occurred"):
            raise Failed(f"{run['name']}: {run['error_message']}")
        if run["run_type"] != "iteration":
            continue
        found.setdefault(run["run_name"], []).append(run["cpu_time"])
        if "bytes" in run:
            memory.append(run["bytes"] / 1024)
    for paths in (64, 4096):
        yield Row(group, f"find a path that is known, one of {paths:,}, in the agent", "ns", found[f"path_hit/{paths}"],
                  "a system call", found["system_call"])
    yield Row(group, "memory of 4,096 paths", "KiB", memory)


def section(bench, table):
    """Returns the text of the section, and its picture.  `table(rows)` returns the rows as text."""
    jobs = list(simulated_jobs(bench))
    parts = [TEXT.format(processes=PROCESSES), simulated_text(jobs), fault_text(bench), real_text(bench),
             table([*cache_rows(bench), *subnet.sa(bench)]).replace("\n## The SA client\n", SA_TEXT, 1)]
    return "\n".join(parts), job_picture.picture(jobs)


def replace_section(page, text):
    """Returns the page with this section, which replaces an older one or is added at the end."""
    whole = f"{BEGIN}\n{text}{END}\n"
    if BEGIN in page:
        return re.sub(re.escape(BEGIN) + ".*?" + re.escape(END) + "\n", lambda _: whole, page, flags=re.S)
    return page.rstrip("\n") + "\n\n" + whole
