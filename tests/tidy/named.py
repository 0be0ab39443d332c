#!/usr/bin/env python3
"""Checks that every test that docs/conformance.md names exists: `Suite.Name` or `system.name`.

Each row of a table with a column "Tests" must name at least one test.
"""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
page = root / "docs/conformance.md"
existing = {f"system.{path.stem}" for path in (root / "tests/system").iterdir()}
existing |= {f"system.linux_{path.stem}" for path in (root / "tests/interop/linux").glob("*.sh")}
for folder in ("src", "tests"):
    for path in (root / folder).rglob("*_test.cc"):
        for suite, name in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", path.read_text(), re.M):
            existing.add(f"{suite}.{name}")

names_on_page = set(re.findall(r"`([A-Za-z_]\w*\.\w+)`", page.read_text()))
tests = {name for name in names_on_page if re.match(r"[A-Z]|system\.", name) and not name.startswith("IBV_")}
missing = sorted(tests - existing)
for name in missing:
    print(f"{page.relative_to(root)} names the test '{name}', which does not exist")
in_table = False
for line in page.read_text().splitlines():
    in_table = line.startswith("|") and (in_table or line.endswith("| Tests |"))
    if in_table and not re.match(r"\|[-|]+$", line) and not line.endswith("| Tests |"):
        if not re.search(r"`[A-Za-z_]\w*\.\w+`", line.rstrip("| ").rsplit("|", 1)[-1]):
            print(f"{page.relative_to(root)}: no test in the row '{line}'")
            missing.append("")
if len(tests) < 20:
    print(f"{page.relative_to(root)}: only {len(tests)} tests were found in it")
    missing.append("")
sys.exit(1 if missing else 0)
