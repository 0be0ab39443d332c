#!/usr/bin/env python3
"""Gets the test suite of /usr/bin/python3 into FOLDER.

usage: fetch_python.py FOLDER

FOLDER/test is Python's package `test`: that of this machine with the files of Debian's package libpython3.N-testsuite.
That package is not installed, because it needs Python of exactly its own version, and so it would upgrade Python on
some machines.  Does nothing if FOLDER is complete.  If the package cannot be downloaded, prints the reason and exits
with 77."""

import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "interop"))
from packages import make_folder, skip_test  # noqa: E402

PYTHON = "/usr/bin/python3"


def main(arguments):
    if len(arguments) != 2 or arguments[1].startswith("-"):
        print(__doc__)
        return 0 if arguments[1:] == ["--help"] else 2
    if not pathlib.Path(PYTHON).exists():
        skip_test(f"{PYTHON} is not installed")
    library = subprocess.run([PYTHON, "-c", "import os; print(os.path.dirname(os.__file__))"], check=True,
                             capture_output=True, text=True).stdout.strip()

    def make(folder, root):
        suite = folder / "test"
        shutil.rmtree(suite, ignore_errors=True)
        shutil.move(root / library[1:] / "test", suite)
        # Other packages have a part of `test`: the modules that the tests share, and the program that runs them.
        shutil.copytree(pathlib.Path(library) / "test", suite, dirs_exist_ok=True)

    name = f"lib{pathlib.Path(library).name}"
    make_folder(pathlib.Path(arguments[1]), [f"{name}-testsuite"], make, related=[f"{name}-stdlib"])
    return 0


sys.exit(main(sys.argv))
