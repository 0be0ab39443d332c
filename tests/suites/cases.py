"""Runs the test cases of one module of Python's own test suite, and records the result of each at once.

    python3 cases.py MODULE RECORD [CASE...]

A line of RECORD is "begin CASE", or "RESULT CASE".  So if the process dies or hangs, RECORD says where.  Without CASEs,
all cases run that RECORD does not have yet.  The process ends itself if a case takes more than LIMIT seconds.
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
    module, path, wanted = sys.argv[1], sys.argv[2], set(sys.argv[3:])
    with open(path) as file:
        done = {line.split(maxsplit=1)[1].strip() for line in file}
    record = open(path, "a", buffering=1)

    def name(case):
        return str(case.id() if isinstance(case, unittest.TestCase) else case).replace(" ", "_")

    class Result(unittest.TextTestResult):
        def put(self, result, case):
            record.write(f"{result} {name(case)}\n")

        def startTest(self, case):
            faulthandler.dump_traceback_later(LIMIT, exit=True)
            self.put("begin", case)
            self.bad = None
            super().startTest(case)

        def stopTest(self, case):
            faulthandler.cancel_dump_traceback_later()
            super().stopTest(case)

        def addSuccess(self, case):
            self.put("ok", case)
            super().addSuccess(case)

        def addError(self, case, error):
            self.put("ERROR", case)
            super().addError(case, error)

        def addFailure(self, case, error):
            self.put("FAIL", case)
            super().addFailure(case, error)

        def addSkip(self, case, reason):
            self.put("skipped", case)
            super().addSkip(case, reason)

        def addExpectedFailure(self, case, error):
            self.put("expected", case)
            super().addExpectedFailure(case, error)

        def addUnexpectedSuccess(self, case):
            self.put("unexpected", case)
            super().addUnexpectedSuccess(case)

        def addSubTest(self, case, subtest, error):
            if error is not None:
                self.put("FAIL" if issubclass(error[0], case.failureException) else "ERROR", subtest)
            super().addSubTest(case, subtest, error)

    def chosen(suite):
        for one in suite:
            if isinstance(one, unittest.TestSuite):
                yield from chosen(one)
            elif (name(one) in wanted) if wanted else (name(one) not in done):
                yield one

    support.use_resources = ["cpu", "walltime", "network"]
    support.verbose = 1
    with os_helper.temp_cwd(f"cases{os.getpid()}"), threading_helper.wait_threads_exit(60):
        suite = unittest.defaultTestLoader.loadTestsFromModule(importlib.import_module(module))
        unittest.TextTestRunner(verbosity=2, resultclass=Result).run(unittest.TestSuite(chosen(suite)))


if __name__ == "__main__":
    main()
