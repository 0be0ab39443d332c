"""Runs modules of Python's own test suite by TCP and by the ring.   python3 python_suite.py DIRECTORY [MODULE...]"""
import os
import re
import subprocess
import sys

import ways

MODULES = """test_socket test_selectors test_select test_poll test_epoll test_socketserver test_ftplib test_smtplib
test_httplib test_httpservers test_xmlrpc test_urllib2_localnet test_urllib2 test_urllib test_imaplib test_poplib
test_telnetlib test_nntplib test_asyncore test_asynchat test_smtpd test_ssl test_asyncio test_logging test_wsgiref
test_docxmlrpc test_robotparser test_kqueue test_signal test_subprocess test_fork1 test_os test_io test_tempfile
test_concurrent_futures test_multiprocessing_fork test_multiprocessing_forkserver
test_multiprocessing_spawn test_multiprocessing_main_handling""".split()
# These cases need a peer that does not exist here.
SKIPPED_CASES = {"test.test_socket.ThreadedVSOCKSocketStreamTest.testStream"}
CASES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases.py")
# If a case has several results, the first one in this list counts.
RANK = ["died", "ERROR", "FAIL", "unexpected", "expected", "skipped", "ok"]
DEATHS_MAX = 20

directory = sys.argv[1]


def run(way, module, cases):
    record = os.path.join(directory, f"{module}.{way}.record")
    log = open(os.path.join(directory, f"{module}.{way}.log"), "a")
    with open(record, "w") as out:
        out.writelines(f"skipped {case}\n" for case in SKIPPED_CASES)
    for _ in range(DEATHS_MAX):
        words = ways.command(way, [sys.executable, CASES, f"test.{module}", record, *cases])
        log.write(f"=== {' '.join(words)}\n")
        log.flush()
        try:
            code = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=directory,
                                  timeout=3600, start_new_session=True).returncode
        except subprocess.TimeoutExpired:
            code = -1
        lines = [line.split(maxsplit=1) for line in open(record).read().splitlines()]
        started = [case for word, case in lines if word == "begin"]
        ended = {re.sub(r"_[(\[].*", "", case) for word, case in lines if word != "begin"}
        if code == 0 or not started or started[-1] in ended:
            break
        with open(record, "a") as out:
            out.write(f"died {started[-1]}\n")
        if cases:
            break
    results = {}
    for line in open(record):
        result, case = line.split(maxsplit=1)
        if case.strip() in SKIPPED_CASES:
            continue
        case = re.sub(r"_[(\[].*", "", case.strip())  # removes the values of a subtest
        if result != "begin" and (case not in results or RANK.index(result) < RANK.index(results[case])):
            results[case] = result
    return results


if __name__ == "__main__":
    sys.exit(1 if ways.compare("python", sys.argv[2:], MODULES, run) else 0)
