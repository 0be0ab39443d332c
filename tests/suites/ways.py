"""Runs test suites by TCP and under `verbena run --sockets`, and compares the results of their cases.

Each suite is a function run(way, unit, cases) that returns a dict of results by case.  If `cases` is empty, it runs all
cases of the unit.  If the results of a case differ, compare() runs the case alone, several times in both ways, because
some differences are random.  known.txt has a line for each difference that cannot be mended, and gives the reason.
"""
import fnmatch
import json
import os
import subprocess
import sys

VERBENA = os.environ["VB_PREFIX"] + "/bin/verbena"
REPEATS = 3
REPEATED_CASES_MAX = 30  # the largest number of cases of one unit that are run again
KNOWN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "known.txt")
GOOD = {"ok", "skipped", "expected"}


def command(way, words):
    """Returns the words of a command that runs `words` in this way: plain, ring or only."""
    if way == "plain":
        return list(words)
    return [VERBENA, "run", "--sockets=auto" if way == "ring" else "--sockets=only", "--", *words]


def service_status():
    """Returns the service's status from `verbena sockets stat`, or None if no service runs."""
    output = subprocess.run([VERBENA, "sockets", "stat", "--json"], capture_output=True, text=True).stdout
    return json.loads(output)["service"] if output else None


def known_differences(suite):
    """Returns the patterns of known.txt for this suite, with their reasons."""
    rows = [line.split(maxsplit=2) for line in open(KNOWN) if line.strip() and not line.startswith("#")]
    return [(case, reason.strip()) for name, case, reason in rows if name == suite]


def bytes_and_pairs():
    """Returns the bytes by the ring, the bytes by TCP, and the number of rings that have been made."""
    now = service_status()
    return (now["total"]["by_ring"], now["total"]["by_tcp"], now["pairs_made"]) if now else (0, 0, 0)


def compare(suite, selected, all_units, run):
    """Runs the selected units, or all units if none is selected, and prints the differences.

    Returns the number of cases that differ again when they run again, and of other faults.
    """
    # Keep a program connected, because the service ends with the last program, and its counters are lost then.
    connected_program = subprocess.Popen(command("ring", [sys.executable, "-c", CONNECTED_PROGRAM]),
                                         stdin=subprocess.PIPE)
    known = known_differences(suite)
    confirmed, unconfirmed, faults = [], [], []
    sums = {"cases": 0, "ok": 0, "ring": 0, "tcp": 0, "pairs": 0}
    for unit in selected or all_units:
        plain = run("plain", unit, [])
        before = bytes_and_pairs()
        ring = run("ring", unit, [])
        ring_bytes, tcp_bytes, pairs = (b - a for a, b in zip(before, bytes_and_pairs()))
        different = sorted(case for case in plain.keys() | ring.keys() if plain.get(case) != ring.get(case))
        ok = sum(result == "ok" for result in ring.values())
        for key, value in (("cases", len(ring)), ("ok", ok), ("ring", ring_bytes), ("tcp", tcp_bytes), ("pairs", pairs)):
            sums[key] += value
        print(f"{unit}: {len(plain)} cases, ok by TCP {sum(r == 'ok' for r in plain.values())}, by the ring {ok}, "
              f"{len(different)} differ; {ring_bytes} bytes by {pairs} rings, {tcp_bytes} by TCP", flush=True)
        if selected and "ok" not in plain.values():
            faults.append(f"{unit}: no case is ok by TCP, so nothing was compared")
        repeated = not_repeated = 0
        for case in different:
            if plain.get(case) == "died":  # each repetition would take the whole time limit
                print(f"  {case}: died by TCP, {ring.get(case)} by the ring", flush=True)
                continue
            reason = next((text for pattern, text in known if fnmatch.fnmatch(case, pattern)), None)
            if reason is not None:
                print(f"  {case}: {plain.get(case)} by TCP, {ring.get(case)} by the ring, as known: {reason}")
                continue
            if repeated == REPEATED_CASES_MAX:
                not_repeated += 1
                continue
            repeated += 1
            repeats = {way: [run(way, unit, [case]).get(case) for _ in range(REPEATS)] for way in ("plain", "ring")}
            print(f"  {case}: {plain.get(case)} by TCP, {ring.get(case)} by the ring; "
                  f"alone {repeats['plain']} and {repeats['ring']}", flush=True)
            if set(repeats["plain"]) & GOOD and not set(repeats["ring"]) <= set(repeats["plain"]):
                confirmed.append(f"{unit} {case}")
            else:
                unconfirmed.append(f"{unit} {case}")
        if not_repeated:
            faults.append(f"{unit}: {not_repeated} further cases differ, and did not run again")
    connected_program.stdin.close()
    connected_program.wait()
    if not selected and sums["pairs"] == 0:
        faults.append("no connection has a ring")
    print(f"{suite}: {sums['cases']} cases, {sums['ok']} ok, {len(confirmed)} differ again: {confirmed}")
    if unconfirmed:
        print(f"{suite}: {len(unconfirmed)} have differed once, and not again: {unconfirmed}")
    print(f"{suite}: {sums['ring']} bytes by {sums['pairs']} rings, {sums['tcp']} by TCP")
    for fault in faults:
        print(f"{suite}: {fault}")
    return len(confirmed) + len(faults)


# This program makes a connection, which starts the service, and keeps the service until its input ends.
CONNECTED_PROGRAM = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
sys.stdin.read()
"""
