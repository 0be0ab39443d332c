#!/usr/bin/env python3
"""Gets rdma-core's own tests, and the Python module that they use, into FOLDER.

usage: fetch.py FOLDER

FOLDER/tests is the suite of Debian's package rdma-core.  FOLDER/site is the module pyverbs of Debian's package
python3-pyverbs, which is compiled for /usr/bin/python3.  Neither package is installed, because rdma-core would install
udev rules and services for adapters.  Does nothing if FOLDER is complete.  If the packages cannot be downloaded, prints
the reason and exits with 77."""

import gzip
import pathlib
import shutil
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from packages import make_folder, skip_test  # noqa: E402

PACKAGES = ["rdma-core", "python3-pyverbs"]
TESTS = "usr/share/doc/rdma-core/tests"
MODULES = "usr/lib/python3/dist-packages"


def make(folder, root):
    if not (root / TESTS).is_dir():
        skip_test("the package rdma-core has no tests")
    for name, path in (("tests", TESTS), ("site", MODULES)):
        shutil.rmtree(folder / name, ignore_errors=True)
        shutil.move(root / path, folder / name)
    for packed in (folder / "tests").glob("*.gz"):
        packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
        packed.unlink()


def main(arguments):
    if len(arguments) != 2 or arguments[1].startswith("-"):
        print(__doc__)
        return 0 if arguments[1:] == ["--help"] else 2
    make_folder(pathlib.Path(arguments[1]), PACKAGES, make)
    return 0


sys.exit(main(sys.argv))
