#!/usr/bin/env python3
"""Lets hosts join a multicast group one after another while one of them sends: _tree_members.py SEED VERBENA GROUPS HOSTS

VERBENA is the command, GROUPS is the program tests/programs/groups, and HOSTS is the number of hosts.  With each join
OpenSM may move the group to another tree.  Exits with a message if a member gets a message twice, or if some member
still gets no message 20 s after the last join.  Prints the number of messages.
"""
import queue
import random
import subprocess
import sys
import threading
import time

seed, verbena, groups, host_count = sys.argv[1:]
GROUP = "239.9.1.1"
MEMBERS_MAX = 12
DEADLINE_S = 20


class Member:
    def __init__(self, number):
        self.name = f"host{number}"
        self.process = subprocess.Popen([verbena, "run", "--node", self.name, "--", groups, f"10.0.0.{number}"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.events = queue.Queue()  # the lines that are no messages
        self.messages = []
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            word, _, text = line.strip().partition(" ")
            if word == "got":
                self.messages.append(text)
            else:
                self.events.put(word)

    def command(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def expect(self, wanted, timeout=DEADLINE_S):
        """Waits for an event.  Returns False if there is none in this time."""
        try:
            word = self.events.get(timeout=timeout)
        except queue.Empty:
            return False
        if word != wanted:
            sys.exit(f"{self.name}: '{word}' instead of '{wanted}'")
        return True


chance = random.Random(int(seed))
numbers = chance.sample(range(1, int(host_count) + 1), min(int(host_count), MEMBERS_MAX))
members = [Member(number) for number in numbers]
for member in members:
    member.expect("ready") or sys.exit(f"{member.name} does not start")
sender = members[0]
sender.command(f"join {GROUP} full")
sender.expect("joined") or sys.exit(f"{sender.name} does not join")
sent = 0


def send():
    global sent
    sent += 1
    sender.command(f"send {GROUP} {sent}")
    sender.expect("sent") or sys.exit(f"{sender.name} does not send")


for member in members[1:]:
    member.command(f"join {GROUP} full")
    deadline = time.monotonic() + DEADLINE_S
    while not member.expect("joined", 0.001):
        time.monotonic() < deadline or sys.exit(f"{member.name} does not join")
        send()
# The SA answers a join before OpenSM has written all tables.
deadline = time.monotonic() + DEADLINE_S
while not all(any(int(text) > sent - 3 for text in member.messages[-3:]) for member in members[1:]):
    time.monotonic() < deadline or sys.exit("no message: " + " ".join(m.name for m in members[1:] if not m.messages))
    send()
    time.sleep(0.001)  # a pause between two messages, so that receivers have buffers for them
for member in members:
    member.process.stdin.close()
for member in members:
    member.process.wait(DEADLINE_S)
for member in members:
    if len(member.messages) != len(set(member.messages)):
        sys.exit(f"{member.name} got a message twice: {' '.join(member.messages)}")
print(sent)
