"""Runs TCP programs by TCP and under `verbena run --sockets`.   python3 programs_suite.py DIRECTORY [NAME...]

Each program is a function in one of the files programs_*.py, which runs a server and its clients.  It runs by TCP
first, and then in the other WAYS.  Exit codes, the output without numbers, the numbers in the output of `exact` clients,
and the files that the programs write must be the same each time.  No connection may remain afterwards.
"""
import argparse
import difflib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import programs
import programs_compiled
import programs_daemons
import programs_languages
import programs_media
import programs_messaging
import programs_named
import programs_python
import programs_rare
import programs_relays
import programs_services
import programs_tools
import programs_web
import ways
from programs import END_SECONDS, READY_SECONDS, until_true

# Each entry has the way of the server and the way of the clients.  With "only", a connection fails if it cannot use the
# ring.
WAYS = {"tcp": ("plain", "plain"), "ring": ("ring", "ring"), "only": ("only", "only"),
        "server": ("ring", "plain"), "client": ("plain", "ring")}
# A program that gives such a note by TCP has failed, even if it gives the same note in each way.
FAILURE = re.compile(r"^fails: |: missing$|: exit code (127$|none: it hangs)")
EARLY = os.environ.get("VERBENA_SOCKETS_EARLY", "50")


def figures_since(before):
    """Waits until the connections are closed.  Returns the bytes by the ring, the bytes by TCP and the number of rings
    since `before`, and the number of connections that remain."""
    until_true(lambda: ways.service_status()["pairs"] == 0, END_SECONDS)
    now = ways.service_status()
    return [now["total"]["by_ring"] - before["total"]["by_ring"], now["total"]["by_tcp"] - before["total"]["by_tcp"],
            now["pairs_made"] - before["pairs_made"], now["pairs"]]


def run_once(program, way, directory):
    """Runs a program once.  Returns notes of its results, with the reason if it failed."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    directory.chmod(0o777)
    # Connections wait for their ring only if both ends have the library.  Otherwise they would wait without a result.
    os.environ["VERBENA_SOCKETS_EARLY"] = EARLY if way in ("ring", "only") else "0"
    round_ = programs.Round(directory, *WAYS[way])
    try:
        program.run(round_)
    except (programs.ServerNotReady, OSError, subprocess.SubprocessError) as problem:
        round_.note("fails", problem)
    (directory / "notes").write_text("".join(f"{line}\n" for line in round_.notes))
    directory.rename(directory.parent / f"{program.name}.{way}")
    return round_.notes


def differences_of(program, directory, ways_to_run, must_use_ring):
    """Runs a program by TCP and in each of `ways_to_run`.  Returns the differences, other faults, and figures."""
    differences, figures = [], []
    expected = run_once(program, "tcp", directory / "run")
    failures = [f"by TCP: {line}" for line in expected if FAILURE.search(line)]
    if failures:
        return failures, ""
    for way in ways_to_run:
        if way == "only" and program.not_only:
            continue
        before = ways.service_status()
        notes = run_once(program, way, directory / "run")
        by_ring, by_tcp, pairs, connections_left = figures_since(before)
        if notes != expected:
            difference = difflib.unified_diff(expected, notes, "tcp", way, lineterm="", n=0)
            differences += [f"{way}: {line}" for line in list(difference)[2:] if not line.startswith("@@")]
        if connections_left:
            differences.append(f"{way}: {connections_left} connections are left")
        if way in ("ring", "only"):
            figures.append(f"{way}: {by_ring:,} bytes by {pairs} rings, {by_tcp:,} by TCP")
            if way == "only" and pairs == 0:
                differences.append("only: no connection has a ring")
            if must_use_ring and by_ring < program.min_bytes:
                differences.append(f"{way}: only {by_ring:,} bytes went by the ring, not {program.min_bytes:,}")
    if not differences:
        for way in WAYS:
            shutil.rmtree(directory / f"{program.name}.{way}", ignore_errors=True)
    return differences, "; ".join(figures)


def find_missing(program, has_users):
    if program.root and not has_users:
        return "root with several users"
    return next((need for need in program.needs if not (shutil.which(need) or os.path.exists(need))), None)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--quick", action="store_true", help="run only the programs that CI runs, and accept few bytes "
                        "by the ring: on a busy machine, receivers sleep, and then bytes go by TCP")
    parser.add_argument("--ways", default="ring,only,server,client")
    options = parser.parse_intermixed_args()
    files = (programs_named, programs_web, programs_services, programs_languages, programs_tools,
             programs_messaging, programs_python, programs_compiled, programs_relays, programs_daemons, programs_media,
             programs_rare)
    all_programs = [program for file in files for program in file.PROGRAMS.programs]
    unknown = set(options.names) - {program.name for program in all_programs}
    if unknown:
        sys.exit(f"no such program: {' '.join(sorted(unknown))}; "
                 f"there are: {' '.join(program.name for program in all_programs)}")
    selected = [program for program in all_programs if (not options.names or program.name in options.names)
              and (program.quick or not options.quick)]
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    with open("/proc/self/uid_map") as file:
        has_users = os.geteuid() == 0 and int(file.read().split()[2]) > 65534
    options.directory.chmod(0o755)
    # Keep a program connected, because the service ends with the last program, and its counters are lost then.
    connected_program = subprocess.Popen(ways.command("ring", [sys.executable, "-c", ways.CONNECTED_PROGRAM]),
                                         stdin=subprocess.PIPE)
    until_true(lambda: ways.service_status() is not None, READY_SECONDS)
    until_true(lambda: ways.service_status()["pairs"] == 0, READY_SECONDS)
    different, skipped, run = [], [], 0
    before = ways.service_status()["total"]["by_ring"]
    for program in selected:
        missing_need = find_missing(program, has_users)
        if missing_need:
            print(f"{program.name}: left out, {missing_need} is missing", flush=True)
            skipped.append(program.name)
            continue
        begin = time.monotonic()
        differences, figures = differences_of(program, options.directory, options.ways.split(","), not options.quick)
        run += 1
        print(f"{program.name}: {'DIFFERS' if differences else 'same'}; {figures} ({time.monotonic() - begin:.0f} s)"
              + (f"; not with only: {program.not_only}" if program.not_only else ""), flush=True)
        for difference in differences:
            print(f"  {difference}", flush=True)
        if differences:
            different.append(program.name)
    by_ring = ways.service_status()["total"]["by_ring"] - before
    connected_program.stdin.close()
    connected_program.wait()
    if options.quick and by_ring < 1_000_000:
        different.append(f"only {by_ring:,} bytes went by the ring")
    print(f"programs: {run} run, {len(different)} differ: {different}; {len(skipped)} left out: {skipped}")
    return 1 if different or (options.names and skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
