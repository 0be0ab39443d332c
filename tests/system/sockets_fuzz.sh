#!/bin/bash
# Tests that random sequences of socket calls by several processes print the same by TCP and under
# `verbena run --sockets`: results, errno, bytes, signals, and the reports of poll, select and epoll.  VB_SEQUENCES is
# the number of sequences (default 300), and VB_SEED the first one (default 1).  The processes wait for each other most
# of the time, so VB_SEQUENCE_JOBS sequences run at a time (default 4).  If the outputs of a sequence differ, the test
# removes steps from it as long as the outputs still differ, and prints the rest.  The test sets no timeout, because
# scripts/soak runs many sequences.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need python3
# The service frees the pages of a ring that has been empty for 1 ms, so that this happens between many calls.
export VERBENA_SOCKETS_RING_IDLE=0.001
# With quickack, TCP acknowledges the end of a stream at once.  Otherwise the acknowledgement may take 40 ms.
ip route change table local local 127.0.0.0/8 dev lo proto kernel scope host src 127.0.0.1 quickack 1 2>/dev/null || true
ip route change table local local 127.0.0.1 dev lo proto kernel scope host src 127.0.0.1 quickack 1 2>/dev/null || true
first=${VB_SEED:-1} sequences=${VB_SEQUENCES:-300} jobs=${VB_SEQUENCE_JOBS:-4}

cat >"$work/compare.py" <<'PY'
import json, os, re, subprocess, sys
from concurrent.futures import ThreadPoolExecutor

fuzz, verbena, first, count, jobs = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
directory = os.path.dirname(sys.argv[0])
batch = min(100, -(-count // jobs))

def start(with_verbena, arguments):
    command = [verbena, "run", "--sockets", "--"] if with_verbena else []
    return subprocess.Popen(command + [fuzz] + arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)

def run_both(arguments):
    """Returns the program's output by TCP and under Verbena, and its error output under Verbena."""
    running = [start(with_verbena, arguments) for with_verbena in (False, True)]
    by_tcp, by_ring = [process.communicate() for process in running]
    return by_tcp[0], by_ring[0], by_ring[1]

def by_sequence(text):
    parts = re.split(r"^sequence (\d+)\n", text, flags=re.M)
    return dict(zip(map(int, parts[1::2]), parts[2::2]))

def run_steps(steps):
    file = os.path.join(directory, "steps")
    with open(file, "w") as out:
        out.write("\n".join(steps) + "\n")
    return run_both(["play", file])[:2]

def differs(steps):
    by_tcp, by_ring = run_steps(steps)
    return by_tcp != by_ring

def minimise(steps):
    """Removes steps as long as the outputs still differ: first many steps at once, and then fewer."""
    size = len(steps) // 2
    while size > 0:
        at = 0
        while at < len(steps):
            fewer = steps[:at] + steps[at + size:]
            if fewer and differs(fewer):
                steps = fewer
            else:
                at += size
        size //= 2
    return steps

def print_difference(seed, by_tcp, by_ring):
    print(f"sequence {seed} differs; VB_SEED={seed} VB_SEQUENCES=1 repeats it")
    steps = subprocess.run([fuzz, "show", str(seed)], capture_output=True, text=True).stdout.splitlines()
    if differs(steps):
        by_tcp, by_ring = run_steps(minimise(steps))
    else:
        print("The outputs of the sequence do not differ in each run.")
    tcp, ring = by_tcp.splitlines(), by_ring.splitlines()
    for i in range(max(len(tcp), len(ring))):
        tcp_line, ring_line = (lines[i] if i < len(lines) else "nothing" for lines in (tcp, ring))
        print(f"  {tcp_line}" if tcp_line == ring_line else f"- {tcp_line}\n+ {ring_line}")

def run_batch(begin):
    return begin, run_both(["run", str(begin), str(min(batch, first + count - begin))])

connections = moved = 0
different = []
with ThreadPoolExecutor(jobs) as pool:
    for begin, (by_tcp, by_ring, errors) in pool.map(run_batch, range(first, first + count, batch)):
        summary = re.search(r"(\d+) of (\d+) connections moved", errors)
        if not summary or errors.count("\n") != 1:
            print("the program says:", errors)
        moved += int(summary[1]) if summary else 0
        connections += int(summary[2]) if summary else 1
        tcp, ring = by_sequence(by_tcp), by_sequence(by_ring)
        for seed in range(begin, min(begin + batch, first + count)):
            if tcp.get(seed) == ring.get(seed) and seed in tcp:
                continue
            different.append(seed)
            if len(different) <= 3:
                print_difference(seed, tcp.get(seed, ""), ring.get(seed, ""))
service = json.loads(subprocess.run([verbena, "sockets", "stat", "--json"], capture_output=True).stdout)["service"]
print(f"{count} sequences, {len(different)} differ: {different[:100]}")
print(f"{moved} of {connections} connections moved bytes by the ring, {service['total']['by_ring']} bytes in all")
# Some connections cannot use the ring (SO_RCVLOWAT before connect()).  On a busy machine more connections move all bytes
# by TCP, because their receivers sleep.
if different or moved < connections * 0.5 or service["total"]["by_ring"] < 1000 * count:
    sys.exit(1)
PY
LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
  python3 "$work/compare.py" "$VB_PREFIX/tests/programs/sockets_fuzz" "$VB_PREFIX/bin/verbena" \
  "$first" "$sequences" "$jobs" || fail "socket calls differ from TCP, VB_SEED=$first VB_SEQUENCES=$sequences"
