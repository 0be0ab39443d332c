"""Runs TCP programs by TCP and under `verbena run --sockets`.   python3 programs_suite.py DIRECTORY [NAME...]

Each program is a function in programs_named.py and its neighbours that runs a server and its clients.  It runs by TCP
first, and then in each of WAYS.  Exit codes, what the programs print and the files that they write must be the same each
time, with figures left out.  Their connections must be gone afterwards.
"""
import argparse
import difflib
import os
import pathlib
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

# The way of the server and that of the clients.  In "only", a connection that cannot use the ring is an error.
WAYS = {"tcp": ("plain", "plain"), "ring": ("ring", "ring"), "only": ("only", "only"),
        "server": ("ring", "plain"), "client": ("plain", "ring")}
EARLY = os.environ.get("VERBENA_SOCKETS_EARLY", "50")


def went_by_ring(since):
    """Waits until the connections are gone.  Returns the bytes by the ring, the bytes by TCP and the number of rings
    since then, and the number of connections that are left."""
    until_true(lambda: ways.service()["pairs"] == 0, END_SECONDS)
    now = ways.service()
    return [now["total"]["by_ring"] - since["total"]["by_ring"], now["total"]["by_tcp"] - since["total"]["by_tcp"],
            now["pairs_made"] - since["pairs_made"], now["pairs"]]


def run_once(one, way, place):
    """Returns what was seen.  If the program fails, the reason is a part of that."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    place.chmod(0o777)
    # A connection whose peer has no library would wait in vain.
    os.environ["VERBENA_SOCKETS_EARLY"] = EARLY if way in ("ring", "only") else "0"
    round_ = programs.Round(place, *WAYS[way])
    try:
        one.run(round_)
    except (programs.Failed, OSError, subprocess.SubprocessError) as problem:
        round_.see("fails", problem)
    (place / "seen").write_text("".join(f"{line}\n" for line in round_.seen))
    place.rename(place.parent / f"{one.name}.{way}")
    return round_.seen


def faults_of(one, directory, wanted, must_use_ring):
    """Runs a program in all ways.  Returns what is wrong, and the figures for the report."""
    faults, figures = [], []
    expected = run_once(one, "tcp", directory / "place")
    if any(line.startswith("fails:") for line in expected):
        return [f"by TCP: {line}" for line in expected if line.startswith("fails:")], ""
    for way in wanted:
        if way == "only" and one.not_only:
            continue
        before = ways.service()
        seen = run_once(one, way, directory / "place")
        by_ring, by_tcp, pairs, left = went_by_ring(before)
        if seen != expected:
            difference = difflib.unified_diff(expected, seen, "tcp", way, lineterm="", n=0)
            faults += [f"{way}: {line}" for line in list(difference)[2:] if not line.startswith("@@")]
        if left:
            faults.append(f"{way}: {left} connections are left")
        if way in ("ring", "only"):
            figures.append(f"{way}: {by_ring:,} bytes by {pairs} rings, {by_tcp:,} by TCP")
            if way == "only" and pairs == 0:
                faults.append("only: no connection has a ring")
            if must_use_ring and by_ring < one.least:
                faults.append(f"{way}: only {by_ring:,} bytes went by the ring, not {one.least:,}")
    if not faults:
        for way in WAYS:
            shutil.rmtree(directory / f"{one.name}.{way}", ignore_errors=True)
    return faults, "; ".join(figures)


def missing(one, has_users):
    if one.root and not has_users:
        return "root with several users"
    return next((need for need in one.needs if not (shutil.which(need) or os.path.exists(need))), None)


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
    every = [one for file in files for one in file.PROGRAMS.every]
    unknown = set(options.names) - {one.name for one in every}
    if unknown:
        sys.exit(f"no such program: {' '.join(sorted(unknown))}; there are: {' '.join(one.name for one in every)}")
    chosen = [one for one in every if (not options.names or one.name in options.names)
              and (one.quick or not options.quick)]
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    with open("/proc/self/uid_map") as file:
        has_users = os.geteuid() == 0 and int(file.read().split()[2]) > 65534
    options.directory.chmod(0o755)
    # Keep a program connected, because the service ends with the last program, and its counters are lost then.
    holder = subprocess.Popen(ways.command("ring", [sys.executable, "-c", ways.HOLD]), stdin=subprocess.PIPE)
    until_true(lambda: ways.service() is not None, READY_SECONDS)
    until_true(lambda: ways.service()["pairs"] == 0, READY_SECONDS)
    bad, left_out, run = [], [], 0
    before = ways.service()["total"]["by_ring"]
    for one in chosen:
        lacks = missing(one, has_users)
        if lacks:
            print(f"{one.name}: left out, {lacks} is missing", flush=True)
            left_out.append(one.name)
            continue
        begin = time.monotonic()
        faults, figures = faults_of(one, options.directory, options.ways.split(","), not options.quick)
        run += 1
        print(f"{one.name}: {'DIFFERS' if faults else 'same'}; {figures} ({time.monotonic() - begin:.0f} s)"
              + (f"; not with only: {one.not_only}" if one.not_only else ""), flush=True)
        for fault in faults:
            print(f"  {fault}", flush=True)
        if faults:
            bad.append(one.name)
    by_ring = ways.service()["total"]["by_ring"] - before
    holder.stdin.close()
    holder.wait()
    if options.quick and by_ring < 1_000_000:
        bad.append(f"only {by_ring:,} bytes went by the ring")
    print(f"programs: {run} run, {len(bad)} differ: {bad}; {len(left_out)} left out: {left_out}")
    return 1 if bad or (options.names and left_out) else 0


if __name__ == "__main__":
    sys.exit(main())
