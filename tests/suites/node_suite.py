"""Runs node's own tests of sockets by TCP and by the ring.   python3 node_suite.py DIRECTORY SOURCE [PATTERN...]

SOURCE is node's source tree.  A PATTERN names tests below SOURCE/test, without ".js".  VB_NODE is the node to run.
"""
import glob
import os
import re
import shlex
import subprocess
import sys

import ways

PATTERNS = """parallel/test-net-* sequential/test-net-* parallel/test-http-* sequential/test-http-* parallel/test-https-*
sequential/test-https-* parallel/test-http2-* parallel/test-tls-* sequential/test-tls-* parallel/test-cluster-*
sequential/test-cluster-* parallel/test-child-process-fork-* parallel/test-child-process-*handle*
parallel/test-child-process-send-* sequential/test-child-process-pass-fd parallel/test-child-process-stdio-*
parallel/test-stream-pipeline* parallel/test-stream-base-* parallel/test-pipe-* parallel/test-socket-*
parallel/test-tcp-wrap-* parallel/test-handle-wrap-* parallel/test-listen-* parallel/test-ttywrap-*
parallel/test-debugger-* parallel/test-inspector-* parallel/test-async-hooks-* async-hooks/test-*""".split()
LIMIT = 240
NODE = os.environ.get("VB_NODE", "node")

directory, source = sys.argv[1:3]


def flags_of(path):
    found = re.search(r"^// Flags:(.*)$", open(path, errors="replace").read(), re.M)
    return shlex.split(found[1]) if found else []


def run_one(way, name):
    path = os.path.join(source, "test", name + ".js")
    words = ways.command(way, [NODE, *flags_of(path), path])
    environment = dict(os.environ, NODE_TEST_DIR=directory, TEST_THREAD_ID="0")
    with open(os.path.join(directory, f"{name.replace('/', '.')}.{way}.log"), "a") as log:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 env=environment, start_new_session=True)
        try:
            code = child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = "hangs"
        try:
            os.killpg(child.pid, 9)
        except ProcessLookupError:
            pass
        child.wait()
    return "ok" if code == 0 else f"exit {code}"


def run(way, pattern, cases):
    names = cases or sorted(os.path.relpath(path, os.path.join(source, "test"))[:-3]
                            for path in glob.glob(os.path.join(source, "test", pattern + ".js")))
    return {name: run_one(way, name) for name in names}


if __name__ == "__main__":
    sys.exit(1 if ways.compare("node", sys.argv[3:], PATTERNS, run) else 0)
