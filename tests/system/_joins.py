#!/usr/bin/env python3
"""Lets programs join and leave multicast groups in random order: _joins.py SEED PROGRAM NODE=ADDRESS...

Starts one process of tests/programs/groups for each NODE=ADDRESS (several may name the same node), and carries out
lines of standard input:
    run COUNT        begins COUNT joins and leaves, and prints "ran" when at most BUSY_MAX memberships are busy
    settle           waits until all joins and leaves have ended.  Prints "settled LOST" (the number of memberships
                     that processes have lost so far), and then a line "MGID NODE JOIN_STATE" for each membership that
                     a host should have: the union over its processes.  A line "." ends the list.
    unexplained LOG  prints a line "MGID NODE FROM TO" for each membership that a process has lost without a good
                     reason since the last command "unexplained".  FROM is the time of the join, and TO that of the
                     loss.  A good reason is that a new manager has created the group again between FROM - REJOIN_S
                     and TO.  LOG is OpenSM's log.  A line "." ends the list.
    end              ends the processes
Prints "ready" when all processes are ready.  Exits with a message if a process ends, if a join fails, or if commands
take more than 60 s.
"""
import datetime
import errno
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time

GROUPS = [f"239.9.0.{i}" for i in range(1, 7)]
STATES = {"full": 1, "send": 8}
TIMEOUT_S = 60
# A join needs no request to the SA if the host is a member already.  The host may notice only later that it has lost
# that membership.  So the loss may have a reason that is this many seconds older than the join.
REJOIN_S = 30
BUSY_MAX = 16  # maximum of memberships with joins or leaves that have not ended

lines = queue.Queue()


def give_up(text):
    sys.exit(f"_joins.py: {text}")


class Process:
    def __init__(self, number, program, node, address):
        self.number, self.node = number, node
        self.memberships = {}  # by group: "full" or "send", if the process is a member or its join is under way
        self.leaves_begun = dict.fromkeys(GROUPS, 0)  # by group: number of commands to leave
        self.leaves_ended = dict.fromkeys(GROUPS, 0)  # by group: number of these commands that have ended
        self.leaves_at_join = {}  # by group: value of leaves_ended when the last join ended
        self.join_time = {}  # by group: time of the last command to join
        self.log = []
        self.lost_count = 0
        command = [os.environ["VB_PREFIX"] + "/bin/verbena", "run", "--verbose", "--node", node, "--", program, address]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, bufsize=1)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.child.stdout:
            lines.put((self, line.rstrip("\n")))
        lines.put((self, None))

    def send_command(self, *words):
        self.log.append("> " + " ".join(words))
        self.child.stdin.write(" ".join(words) + "\n")

    def join_or_leave(self, group, kind):
        """Leaves the group if the process is a member or its join is under way.  Otherwise joins the group."""
        if group not in self.memberships:
            self.memberships[group] = kind
            self.join_time[group] = time.time()
            self.send_command("join", group, kind)
        else:
            del self.memberships[group]
            self.leaves_begun[group] += 1
            self.send_command("leave", group)

    def is_busy(self, group):
        return (self.leaves_ended[group] != self.leaves_begun[group] or
                (group in self.memberships and self.leaves_at_join.get(group) != self.leaves_begun[group]))

    def handle(self, line):
        if line is None:
            give_up(f"process {self.number} on {self.node} has ended: {self.log}")
        self.log.append(line)
        word, group, *status = line.split() + [""]
        if word == "joined":
            self.leaves_at_join[group] = self.leaves_ended[group]
        elif word == "left":
            self.leaves_ended[group] += 1
        elif word == "lost" or (word == "failed" and int(status[0]) == -errno.ENETRESET):
            # A new manager has given the MLID of this group to another group, perhaps while the join was under way.
            # The program may join again.
            losses.append((mgid(group), self.node, self.join_time[group], time.time()))
            self.lost_count += 1
            if self.leaves_ended[group] == self.leaves_begun[group]:
                self.memberships.pop(group, None)
        elif word == "failed":
            give_up(f"a join of process {self.number} on {self.node} has failed: {self.log}")


losses = []


def busy_count():
    return sum(process.is_busy(group) for process in processes for group in GROUPS)


def handle_lines(until):
    """Handles lines that the processes print until the function `until` returns true."""
    end = time.monotonic() + TIMEOUT_S
    while not until():
        try:
            process, line = lines.get(timeout=max(0, end - time.monotonic()))
        except queue.Empty:
            give_up("commands do not end: " + "; ".join(f"{p.number} on {p.node}: {p.log}" for p in processes))
        process.handle(line)


def mgid(group):
    a, b, c, d = (int(part) for part in group.split("."))
    return f"ff12:4001:ffff::{(a & 0xf) << 8 | b:x}:{c << 8 | d:x}"


def print_unexplained(log):
    """Prints the lost memberships whose groups were not created again, as the log shows.  Then clears `losses`."""
    created = []
    for line in open(log, errors="replace"):
        found = re.match(r'(\w+ +\d+ [\d:]+) (\d+) .*"New mcast group created", MGID:(\S+)', line)
        if found:
            at = datetime.datetime.strptime(f"{time.localtime().tm_year} {found[1]}", "%Y %b %d %H:%M:%S")
            created.append((found[3], at.timestamp() + int(found[2]) / 1e6))
    for group, node, joined, lost in losses:
        if not any(new_group == group and joined - REJOIN_S <= at <= lost for new_group, at in created):
            print(group, node, f"{joined:.3f}", f"{lost:.3f}")
    losses.clear()
    print(".", flush=True)


rng = random.Random(int(sys.argv[1]))
processes = [Process(i, sys.argv[2], *word.split("=")) for i, word in enumerate(sys.argv[3:])]
handle_lines(lambda: all("ready" in process.log for process in processes))
print("ready", flush=True)
for command in sys.stdin:
    word, *argument = command.split()
    if word == "run":
        for _ in range(int(argument[0])):
            rng.choice(processes).join_or_leave(rng.choice(GROUPS), rng.choice(list(STATES)))
            handle_lines(lambda: lines.empty() and busy_count() <= BUSY_MAX)
        print("ran", flush=True)
    elif word == "end":
        break
    elif word == "settle":
        handle_lines(lambda: lines.empty() and busy_count() == 0)
        expected = {}
        for process in processes:
            for group, kind in process.memberships.items():
                key = mgid(group), process.node
                expected[key] = expected.get(key, 0) | STATES[kind]
        print("settled", sum(process.lost_count for process in processes), flush=True)
        for (group, node), state in sorted(expected.items()):
            print(group, node, f"{state:#x}")
        print(".", flush=True)
    elif word == "unexplained":
        print_unexplained(argument[0])
for process in processes:
    process.child.stdin.close()
    if process.child.wait(timeout=TIMEOUT_S) != 0:
        give_up(f"process {process.number} on {process.node} ends with {process.child.returncode}")
