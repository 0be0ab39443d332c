#!/usr/bin/env python3
"""Lets programs join and leave multicast groups in random order: _joins.py SEED PROGRAM NODE=ADDRESS...

Starts one process of tests/programs/groups on each NODE (a node may be named several times), and carries out lines of
standard input:
    run COUNT     begins COUNT joins and leaves, and does not wait until they have ended
    settle        waits until all of them have ended, and prints "settled", and then a line "MGID NODE JOIN_STATE" for
                  each membership that a host should have: the union over its processes.  A line "." ends the list.
    explain LOG   prints a line "MGID NODE FROM TO" for each membership that has ended by itself without a good reason
                  since the last such command.  It is a good reason if a new manager has created the group again between
                  the times FROM and TO, by its log (OpenSM's LOG).  A line "." ends the list.
    end           ends the processes
This program ends with a message if a process ends, if a join fails, or if commands take more than 60 s.
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
BUSY_MAX = 16  # commands that are under way

lines = queue.Queue()


def give_up(text):
    sys.exit(f"_joins.py: {text}")


class Process:
    def __init__(self, number, program, node, address):
        self.number, self.node = number, node
        self.how = {}  # by group: "full" or "send", if the process is a member or has been told to join
        self.leaves = dict.fromkeys(GROUPS, 0)  # number of leaves that the process was told to do
        self.left = dict.fromkeys(GROUPS, 0)  # number of leaves that have ended
        self.joined_after = {}  # by group: number of leaves that had ended when the last join ended
        self.asked = {}  # by group: time of the last command to join
        self.log = []
        self.lost = 0
        command = [os.environ["VB_PREFIX"] + "/bin/verbena", "run", "--verbose", "--node", node, "--", program, address]
        self.child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.STDOUT, text=True, bufsize=1)
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.child.stdout:
            lines.put((self, line.rstrip("\n")))
        lines.put((self, None))

    def tell(self, *words):
        self.log.append("> " + " ".join(words))
        self.child.stdin.write(" ".join(words) + "\n")

    def change(self, group, how):
        """Joins the group, or leaves it; a join that is under way may be left, too."""
        if group not in self.how:
            self.how[group] = how
            self.asked[group] = time.time()
            self.tell("join", group, how)
        else:
            del self.how[group]
            self.leaves[group] += 1
            self.tell("leave", group)

    def is_busy(self, group):
        return (self.left[group] != self.leaves[group] or
                (group in self.how and self.joined_after.get(group) != self.leaves[group]))

    def take(self, line):
        if line is None:
            give_up(f"process {self.number} on {self.node} has ended: {self.log}")
        self.log.append(line)
        word, group, *status = line.split() + [""]
        if word == "joined":
            self.joined_after[group] = self.left[group]
        elif word == "left":
            self.left[group] += 1
        elif word == "lost" or (word == "failed" and int(status[0]) == -errno.ENETRESET):
            # A new manager has given the LID of this group to another group, perhaps before the program has heard of its
            # join.  The program may join again.
            losses.append((mgid(group), self.node, self.asked[group], time.time()))
            self.lost += 1
            if self.left[group] == self.leaves[group]:
                self.how.pop(group, None)
        elif word == "failed":
            give_up(f"a join of process {self.number} on {self.node} has failed: {self.log}")


losses = []


def busy():
    return sum(process.is_busy(group) for process in processes for group in GROUPS)


def take_lines(until):
    """Takes lines of the processes until the function returns true."""
    end = time.monotonic() + TIMEOUT_S
    while not until():
        try:
            process, line = lines.get(timeout=max(0, end - time.monotonic()))
        except queue.Empty:
            give_up("commands do not end: " + "; ".join(f"{p.number} on {p.node}: {p.log}" for p in processes))
        process.take(line)


def mgid(group):
    a, b, c, d = (int(part) for part in group.split("."))
    return f"ff12:4001:ffff::{(a & 0xf) << 8 | b:x}:{c << 8 | d:x}"


def explain(log):
    """Prints the losses for which the log has no new group, and forgets all losses."""
    made = []
    for line in open(log, errors="replace"):
        found = re.match(r'(\w+ +\d+ [\d:]+) (\d+) .*"New mcast group created", MGID:(\S+)', line)
        if found:
            at = datetime.datetime.strptime(f"{time.localtime().tm_year} {found[1]}", "%Y %b %d %H:%M:%S")
            made.append((found[3], at.timestamp() + int(found[2]) / 1e6))
    for group, node, asked, lost in losses:
        if not any(one == group and asked <= at <= lost for one, at in made):
            print(group, node, f"{asked:.3f}", f"{lost:.3f}")
    losses.clear()
    print(".", flush=True)


chance = random.Random(int(sys.argv[1]))
processes = [Process(i, sys.argv[2], *word.split("=")) for i, word in enumerate(sys.argv[3:])]
take_lines(lambda: all("ready" in process.log for process in processes))
print("ready", flush=True)
for command in sys.stdin:
    word, *count = command.split()
    if word == "run":
        for _ in range(int(count[0])):
            chance.choice(processes).change(chance.choice(GROUPS), chance.choice(list(STATES)))
            take_lines(lambda: lines.empty() and busy() <= BUSY_MAX)
        print("ran", flush=True)
    elif word == "end":
        break
    elif word == "settle":
        take_lines(lambda: lines.empty() and busy() == 0)
        wanted = {}
        for process in processes:
            for group, how in process.how.items():
                key = mgid(group), process.node
                wanted[key] = wanted.get(key, 0) | STATES[how]
        print("settled", sum(process.lost for process in processes), flush=True)
        for (group, node), state in sorted(wanted.items()):
            print(group, node, f"{state:#x}")
        print(".", flush=True)
    elif word == "explain":
        explain(count[0])
for process in processes:
    process.child.stdin.close()
    if process.child.wait(timeout=TIMEOUT_S) != 0:
        give_up(f"process {process.number} on {process.node} ends with {process.child.returncode}")
