#!/usr/bin/env python3
"""Checks that every counter that docs/limits.md names exists.

The sources contain a counter's complete name (`limit_pds`), or the two parts that ipc::counter_name() joins: a prefix
and words (`cm_ignored_` and "no room").
"""
import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parents[2]
page = root / "docs/limits.md"

literals = set()
for path in (root / "src").rglob("*"):
    if path.suffix in (".cc", ".h") and not path.stem.endswith(("_test", "_fuzz")):
        literals |= set(re.findall(r'"([A-Za-z][\w ]*)"', path.read_text()))
words = {re.sub(r"[^a-z0-9]+", "_", text.lower()) for text in literals}
prefixes = {text for text in literals if text.endswith("_")}


def exists(name):
    return name in literals or any(
        name.startswith(prefix) and name.removeprefix(prefix) in words for prefix in prefixes)


names_on_page = set()
for line in page.read_text().splitlines():
    if line.startswith("|"):
        names_on_page |= set(re.findall(r"`([a-z][a-z0-9_]*)`", line.rstrip("| \n").rsplit("|", 1)[-1]))
    elif "counter" in line or "counts" in line:
        names_on_page |= set(re.findall(r"`(cm_[a-z0-9_]*|\w+_held)`", line))
missing = sorted(name for name in names_on_page if not exists(name))
for name in missing:
    print(f"{page.relative_to(root)} names the counter '{name}', which does not exist")
if len(names_on_page) < 40:
    print(f"{page.relative_to(root)}: only {len(names_on_page)} counters were found in it")
    missing.append("")
sys.exit(1 if missing else 0)
