#!/usr/bin/env python3
"""Compares the device attributes that answers.sh found with the table in docs/conformance.md, or writes it (--record).

The table has the attributes that differ.  A person writes the reason of each difference.  --record keeps the reasons.
"""
import pathlib
import re
import sys

BEGIN, END = "<!-- attributes: made by tests/interop/linux/answers.sh -->\n", "\n<!-- attributes end -->"
HEAD = ["| attribute | Verbena | Linux | why |", "|---|---|---|---|"]


def attributes(path):
    return dict(line.rsplit(" ", 1) for line in pathlib.Path(path).read_text().splitlines())


def reasons(table):
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[len(HEAD) :]]
    return {row[0].strip("`"): row[3] for row in rows if len(row) == 4}


def main(arguments):
    if len(arguments) not in (4, 5) or arguments[4:] not in ([], ["--record"]):
        print("usage: attributes_table.py VERBENA LINUX CONFORMANCE [--record]")
        return 2
    ours, linux = attributes(arguments[1]), attributes(arguments[2])
    if not ours or ours.keys() != linux.keys():
        print(f"the two sides have different attributes: {sorted(ours.keys() ^ linux.keys())}")
        return 1
    page = pathlib.Path(arguments[3])
    text = page.read_text()
    match = re.search(re.escape(BEGIN) + "(.*)" + re.escape(END), text, re.S)
    if match is None:
        print(f"{page} has no place for the table")
        return 1
    why = reasons(match[1])
    rows = [
        f"| `{name}` | {ours[name]} | {linux[name]} | {why.get(name, '')} |"
        for name in ours
        if ours[name] != linux[name]
    ]
    table = "\n".join(HEAD + rows)
    if arguments[4:]:
        page.write_text(text[: match.start(1)] + table + text[match.end(1) :])
        return 0
    without_reason = [name for name in ours if ours[name] != linux[name] and not why.get(name)]
    if without_reason:
        print(f"these differences have no reason: {without_reason}")
        return 1
    if match[1] != table:
        print(table)
        return 1
    return 0


sys.exit(main(sys.argv))
