"""Runs run_tests.py of the current folder, and writes the outcome of each test to FILE.

usage: recorded.py FILE [ARGUMENT of run_tests.py...]

Writes a line of JSON to FILE when a test begins, and one for each outcome.  So if a test crashes the whole program,
FILE has the name of that test."""

import json
import os
import runpy
import sys
import unittest

record = open(sys.argv[1], "w", buffering=1)


def write_outcome(test, verdict, why=""):
    record.write(json.dumps({"test": test.id(), "verdict": verdict, "why": str(why)}) + "\n")


def message_of(error):
    return f"{error[0].__name__}: {error[1]}"


class Recording(unittest.TextTestResult):
    def startTest(self, test):
        write_outcome(test, "begun")
        super().startTest(test)

    def addSuccess(self, test):
        write_outcome(test, "passed")
        super().addSuccess(test)

    def addSkip(self, test, reason):
        write_outcome(test, "skipped", reason)
        super().addSkip(test, reason)

    def addError(self, test, error):
        write_outcome(test, "failed", message_of(error))
        super().addError(test, error)

    def addFailure(self, test, error):
        write_outcome(test, "failed", message_of(error))
        super().addFailure(test, error)

    def addSubTest(self, test, subtest, error):
        if error is not None:
            write_outcome(test, "failed", message_of(error))
        super().addSubTest(test, subtest, error)


unittest.TextTestRunner.resultclass = Recording
sys.argv = ["run_tests.py"] + sys.argv[2:]
sys.path.insert(0, os.getcwd())
runpy.run_path(os.path.abspath("run_tests.py"), run_name="__main__")
