"""Runs Redis' own tests by TCP and by the ring.   python3 redis_suite.py DIRECTORY SOURCE [UNIT...]

SOURCE is Redis' source tree, with the programs in SOURCE/src.  A UNIT is a file below SOURCE/tests, without ".tcl".
The servers, the programs that they start and the client in Tcl all use the same way: TCP, or the ring.
"""
import fcntl
import os
import re
import signal
import subprocess
import sys

import ways

UNITS = """unit/type/string unit/type/incr unit/type/list unit/type/list-2 unit/type/list-3 unit/type/set unit/type/zset
unit/type/hash unit/type/stream unit/type/stream-cgroups unit/pubsub unit/pubsubshard unit/other unit/introspection
unit/introspection-2 unit/networking unit/protocol unit/maxmemory unit/multi unit/obuf-limits unit/client-eviction
unit/querybuf unit/pendingquerybuf unit/replybufsize unit/limits unit/quit unit/auth unit/acl unit/tracking unit/wait
unit/shutdown unit/pause unit/dump unit/keyspace unit/scan unit/expire unit/scripting unit/functions unit/aofrw
unit/cluster integration/replication integration/replication-2 integration/replication-3 integration/replication-4
integration/replication-psync integration/replication-buffer integration/block-repl integration/psync2
integration/psync2-reg integration/psync2-pingoff integration/psync2-master-restart integration/failover
integration/aof integration/aof-race integration/aof-multi-part integration/rdb integration/redis-cli
integration/redis-benchmark integration/shutdown integration/logging integration/dismiss-mem""".split()
LIMIT = 1200
# If a case has several results, the first one in this list counts.
RANK = ["err", "exception", "died", "ok", "ignore"]
EXIT_CODE = "exit code"  # the name of a case that each unit has

directory, source = sys.argv[1:3]


def run(way, unit, cases):
    # The exit code is that of the whole unit.
    is_whole = not cases or EXIT_CODE in cases
    options = [] if is_whole else [word for case in cases for word in ("--only", case)]
    words = ways.command(way, ["tclsh", "tests/test_helper.tcl", "--single", unit, "--clients", "1", *options])
    path = os.path.join(directory, f"{unit.replace('/', '.')}.{way}{'.again' if cases else ''}.log")
    with open(path, "w") as log:
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=source,
                                 start_new_session=True)
        try:
            code = child.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = "hangs"
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
    results = {EXIT_CODE: "ok" if code == 0 else str(code)} if is_whole else {}
    for line in open(path, errors="replace"):
        line = re.sub(r"\x1b\[[0-9;]*m", "", line)
        found = re.match(r"\[(ok|err|exception|ignore)\]: (.*?)(?: \(\d+ ms\))?(?: in tests/\S+)?$", line.strip())
        if not found:
            continue
        case = re.sub(r"0x[0-9a-f]+|\b\d{4,}\b|#\d+|(?<=CYCLE )\d+", "N", found[2])  # replaces random parts
        if case not in results or RANK.index(found[1]) < RANK.index(results[case]):
            results[case] = found[1]
    return results


if __name__ == "__main__":
    # Redis' tests write to the source tree, so only one run at a time may use it.
    lock = open(os.path.join(source, "verbena-lock"), "w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    sys.exit(1 if ways.compare("redis", sys.argv[3:], UNITS, run) else 0)
