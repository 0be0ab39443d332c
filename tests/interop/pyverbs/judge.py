#!/usr/bin/env python3
"""Runs rdma-core's own test suite on the built products, and checks the results.

usage: judge.py [--record | --infiniband] [ARGUMENT of run_tests.py...]

Every test must pass, except the tests of excused.txt.  These may be skipped or fail, but only with the message that is
given there.  If such a test passes, this is a failure as well, so that the list stays short.
VB_PREFIX and VB_SOURCE are those of all system tests; VB_PYVERBS is the folder that fetch.py has made.

--infiniband runs the suite on a host of a simulated subnet; the tests of excused_infiniband.txt are excused, too.
--record writes the table in docs/conformance.md.  With further arguments (-k PATTERN) only the tests that ran are
checked, and no table is written."""

import collections
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
PYTHON = "/usr/bin/python3"  # Debian's module pyverbs is compiled for this version
# The suite asks `ip` for the address of the device's interface, so the kernel must have such an interface.  For a
# simulated subnet, the interface has the name and the address of the host's interface in the subnet.
Host = collections.namedtuple("Host", "node interface address")
ETHERNET = Host(None, "pyverbs", "10.96.0.1/24")
INFINIBAND = Host("host1", "ib0", "10.0.0.1/16")
BEGIN, END = "<!-- pyverbs: made by tests/interop/pyverbs/judge.py --record -->", "<!-- pyverbs end -->"

Excuse = collections.namedtuple("Excuse", "when tests message reason location")


def read_excuses(file):
    excuses = []
    for number, line in enumerate(HERE.joinpath(file).read_text().splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        when, tests, message, reason = (part.strip() for part in line.split(" | "))
        if when not in ("skips", "may skip", "fails"):
            sys.exit(f"{file}:{number}: not 'skips', 'may skip' or 'fails'")
        excuses.append(Excuse(when, tests, re.compile(message), reason, f"{file}:{number}"))
    return excuses


def verbena(*arguments):
    """Returns the command that runs verbena with these arguments, and its environment."""
    environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", LD_PRELOAD=os.environ.get("VB_PRELOAD", ""),
                       ASAN_OPTIONS="detect_leaks=0:verify_asan_link_order=0")
    return [f"{os.environ['VB_PREFIX']}/bin/verbena", *arguments], environment


def fabric_up(folder):
    """Starts a subnet of two hosts under OpenSM.  Returns False if OpenSM is not installed."""
    if not any(os.access(path, os.X_OK) for path in ("/usr/sbin/opensm", "/usr/bin/opensm")):
        return False
    netlist = pathlib.Path(folder) / "netlist"
    command, environment = verbena("fabric", "make", "--hosts", "2", "--infiniband")
    netlist.write_bytes(subprocess.run(command, env=environment, check=True, capture_output=True).stdout)
    command, environment = verbena("fabric", "up", str(netlist), "--name", "pyverbs")
    subprocess.run(command, env=environment, check=True)
    return True


def fabric_down():
    command, environment = verbena("fabric", "down", "pyverbs")
    subprocess.run(command, env=environment, check=True)


def run(record, host, arguments):
    """Runs the suite and returns its exit code.  Tests of the RDMA CM need --sysfs: they find the interface in /sys."""
    pyverbs = pathlib.Path(os.environ["VB_PYVERBS"])
    node = ["--node", host.node] if host.node else []
    command, environment = verbena("run", "--sysfs", *node, "--", PYTHON, HERE / "recorded.py", record, "-v", *arguments)
    environment["PYTHONPATH"] = str(pyverbs / "site")
    if host.node:
        environment.pop("VERBENA_LINK", None)  # programs on a fabric need lanes
    return subprocess.run(command, cwd=pyverbs / "tests", env=environment).returncode


def make_interface(host):
    """Makes an interface for tests of the RDMA CM.  Returns False if this process may not make it.

    The tests bind to the first address of the device's interface, and then use the device of the id.  A
    loopback address belongs to no device."""
    name = host.interface
    for command in (f"link add {name} type veth peer name {name}-peer", f"link set {name}-peer up",
                    f"link set {name} up", f"address add {host.address} dev {name}"):
        if subprocess.run(["ip", *command.split()], stderr=subprocess.DEVNULL).returncode:
            return False
    return True


def outcomes(record):
    """Returns {test: (verdict, reason)}.  A test with several verdicts (of subtests) has the worst of them."""
    results = {}
    for line in record.read_text().splitlines():
        entry = json.loads(line)
        verdict, why = entry["verdict"], entry["why"]
        before = results.get(entry["test"], ("begun", ""))[0]
        if before not in ("failed", "skipped") or verdict == "failed":
            results[entry["test"]] = (verdict, why)
    return results


def check_outcomes(results, allowed):
    """Returns the problems, the excuse of each skipped test, and the excuses that were not needed."""
    problems, excused, used = [], {}, set()
    for test, (verdict, why) in results.items():
        matching = [e for e in allowed if fnmatch.fnmatchcase(test, e.tests)]
        if verdict == "passed":
            needless = [e for e in matching if e.when != "may skip"]
            problems += [f"passes, and needs no excuse: {test} ({e.location})" for e in needless]
        elif verdict == "begun":
            problems.append(f"the suite's process ended during {test}")
        else:
            fitting = [e for e in matching if (e.when == "fails") == (verdict == "failed") and e.message.search(why)]
            if fitting:
                excused[test] = fitting[0]
                used.add(fitting[0])
            else:
                problems.append(f"{verdict}, not excused: {test}: {why}")
    unused = [e for e in allowed if e.when != "may skip" and e not in used]
    return problems, excused, unused


def module_of(test):
    return test.split(".")[1]


def table(results, excused):
    rows = ["| tests | passed | skipped | failed | why |", "|---|---|---|---|---|"]
    count = lambda tests, verdict: sum(results[t][0] == verdict for t in tests)

    modules = collections.defaultdict(list)
    for test in results:
        modules[module_of(test)].append(test)
    for module, tests in sorted(modules.items()):
        reasons = collections.Counter(excused[t].reason for t in tests if t in excused)
        if count(tests, "skipped") == len(tests) and len(reasons) == 1:
            continue  # all tests have the same excuse: they are counted below as "other modules"
        why = "; ".join(f"{reason} ({n})" for reason, n in sorted(reasons.items()))
        verdicts = " | ".join(str(count(tests, v)) for v in ("passed", "skipped", "failed"))
        rows.append(f"| `{module}` | {verdicts} | {why} |")
        modules[module] = None
    other_modules = collections.Counter()
    for tests in modules.values():
        for test in tests or []:
            other_modules[excused[test].reason] += 1
    for reason, n in sorted(other_modules.items()):
        rows.append(f"| other modules | 0 | {n} | 0 | {reason} |")
    verdicts = " | ".join(f"**{count(results, v)}**" for v in ("passed", "skipped", "failed"))
    rows.append(f"| **all {len(results)}** | {verdicts} | |")
    return "\n".join(rows)


def record_table(text):
    page = pathlib.Path(os.environ["VB_SOURCE"]) / "docs/conformance.md"
    before = page.read_text() if page.exists() else f"# Conformance\n\n{BEGIN}\n{END}\n"
    if BEGIN not in before:
        before += f"\n{BEGIN}\n{END}\n"
    head, rest = before.split(BEGIN, 1)
    page.write_text(f"{head}{BEGIN}\n{text}\n{END}{rest.split(END, 1)[1]}")


def main(arguments):
    if "--help" in arguments:
        print(__doc__)
        return 0
    should_record = "--record" in arguments
    host = INFINIBAND if "--infiniband" in arguments else ETHERNET
    if should_record and host != ETHERNET:
        sys.exit("--record is for the suite without --infiniband")
    arguments = [a for a in arguments if a not in ("--record", "--infiniband")]
    if not os.access(PYTHON, os.X_OK):
        print(f"{PYTHON} is not installed")
        return 77
    if not make_interface(host):
        print("no right to configure the network here (CAP_NET_ADMIN)")
        return 77
    with tempfile.TemporaryDirectory() as temporary:
        record = pathlib.Path(temporary) / "record"
        if host.node and not fabric_up(temporary):
            print("opensm is not installed")
            return 77
        try:
            code = run(record, host, arguments)
        finally:
            subprocess.run(["ip", "link", "delete", host.interface])
            if host.node:
                fabric_down()
        if not record.exists():
            print(f"FAILED: the suite did not begin: exit {code}")
            return 1
        results = outcomes(record)
    own_excuses = read_excuses("excused_infiniband.txt" if host.node else "excused.txt")
    problems, excused, unused = check_outcomes(results, own_excuses + (read_excuses("excused.txt") if host.node else []))
    if not arguments:
        problems += [f"no test needs {e.location}: {e.tests}" for e in unused if e in own_excuses]
    if not results:
        problems.append("no test ran")
    if code != 0 and not problems and not any(v == "failed" for v, _ in results.values()):
        problems.append(f"the suite ended with {code}, although no test failed")
    for problem in problems:
        print(f"FAILED: {problem}")
    passed = sum(verdict == "passed" for verdict, _ in results.values())
    print(f"{len(results)} tests, {passed} passed, {len(excused)} excused")
    if problems:
        return 1
    if not arguments:
        print(table(results, excused))
        if should_record:
            record_table(table(results, excused))
    return 0


sys.exit(main(sys.argv[1:]))
