#!/usr/bin/env python3
"""Checks that src reads the environment only with secure_getenv(), because a setuid program that is linked to the
libraries must not trust the environment of its caller."""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
plain_getenv = re.compile(r"(?<![A-Za-z_])(?:std::|::)?getenv\s*\(")


def is_test_file(path):
    return path.stem.endswith("_test") or path.stem.startswith("test_") or path.parent.name == "sim"


files = [path for path in sorted((root / "src").rglob("*"))
         if path.suffix in (".cc", ".h") and not is_test_file(path)]
found = 0
for path in files:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code = line.split("//")[0]
        if plain_getenv.search(code):
            print(f"{path.relative_to(root)}:{number}: plain getenv(); use secure_getenv()")
            found += 1
if len(files) < 100:
    print(f"only {len(files)} files were found")
    found += 1
sys.exit(1 if found else 0)
