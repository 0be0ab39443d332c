"""Runs the test cases of one module of Python's own test suite, and records each result at once.

    python3 cases.py MODULE RECORD [CASE...]

A line of RECORD is "begin CASE", or "RESULT CASE".  So if the process dies or hangs, RECORD names the case.  Without
CASEs, runs all cases that RECORD does not have yet.  The process ends itself if a case takes more than LIMIT seconds.
"""
import faulthandler
import importlib
import os
import sys
import unittest

from test import support
from test.support import os_helper, threading_helper

LIMIT = 60


def main():
    module, path, selected = sys.argv[1], sys.argv[2], set(sys.argv[3:])
    with open(path) as file:
        done = {line.split(maxsplit=1)[1].strip() for line in file}
    record = open(path, "a", buffering=1, errors="backslashreplace")

    def name(case):
        # A name can have line ends: a subtest's name has the values that it tests.
        return "_".join(str(case.id() if isinstance(case, unittest.TestCase) else case).split())

    class Result(unittest.TextTestResult):
        def record_result(self, result, case):
            record.write(f"{result} {name(case)}\n")

        def startTest(self, case):
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            self.record_result("begin", case)
            super().startTest(case)

        def stopTest(self, case):
            faulthandler.cancel_dump_traceback_later()
            super().stopTest(case)

        def addSuccess(self, case):
            self.record_result("ok", case)
            super().addSuccess(case)

        def addError(self, case, error):
            self.record_result("ERROR", case)
            super().addError(case, error)

        def addFailure(self, case, error):
            self.record_result("FAIL", case)
            super().addFailure(case, error)

        def addSkip(self, case, reason):
            self.record_result("skipped", case)
            super().addSkip(case, reason)

        def addExpectedFailure(self, case, error):
            self.record_result("expected", case)
            super().addExpectedFailure(case, error)

        def addUnexpectedSuccess(self, case):
            self.record_result("unexpected", case)
            super().addUnexpectedSuccess(case)

        def addSubTest(self, case, subtest, error):
            if error is not None:
                self.record_result("FAIL" if issubclass(error[0], case.failureException) else "ERROR", subtest)
            super().addSubTest(case, subtest, error)

    def cases_to_run(suite):
        for entry in suite:
            if isinstance(entry, unittest.TestSuite):
                yield from cases_to_run(entry)
            elif (name(entry) in selected) if selected else (name(entry) not in done):
                yield entry

    support.use_resources = ["cpu", "walltime", "network"]
    support.verbose = 1
    with os_helper.temp_cwd(f"cases{os.getpid()}"), threading_helper.wait_threads_exit(60):
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
        unittest.TextTestRunner(verbosity=2, resultclass=Result).run(unittest.TestSuite(cases_to_run(suite)))


if __name__ == "__main__":
    main()
