#!/usr/bin/env python3
"""Compares the results of matrix.sh with the table in docs/conformance.md, or writes the table (--record)."""
import pathlib
import re
import sys

COLUMNS = [("a", "Verbena"), ("b", "Linux")]  # the requester
# Each setting is a path MTU, as a value of enum ibv_mtu and in bytes.  The settings with * have a line that loses
# packets.
SETTINGS = [("3", "1024"), ("5", "4096"), ("3-loss", "1024*"), ("5-loss", "4096*")]


def table(lines):
    results, names = {}, []
    for line in lines:
        requester, setting, name, word, *why = line.split(" ", 4)
        results[requester, setting, name] = " ".join([word, *why]).rstrip()
        if name not in names:
            names.append(name)
    headings = [f"{name_of_requester} {mtu}" for _, name_of_requester in COLUMNS for _, mtu in SETTINGS]
    out = ["| operation | " + " | ".join(headings) + " |", "|---" * (len(headings) + 1) + "|"]
    notes = []
    for name in names:
        cells = []
        for requester, _ in COLUMNS:
            for setting, _ in SETTINGS:
                result = results.get((requester, setting, name), "-")
                if result.startswith("none: "):
                    note = result.removeprefix("none: ")
                    if note not in notes:
                        notes.append(note)
                    result = f"none ({notes.index(note) + 1})"
                cells.append(result)
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    out += [""] + [f"({i + 1}) {note}" + "  " for i, note in enumerate(notes)]
    return "\n".join(out).rstrip()


def main(arguments):
    if len(arguments) not in (3, 4) or arguments[3:] not in ([], ["--record"]):
        print("usage: matrix_table.py LINES CONFORMANCE [--record]")
        return 2
    new_table = table(pathlib.Path(arguments[1]).read_text().splitlines())
    page = pathlib.Path(arguments[2])
    text = page.read_text()
    begin, end = "<!-- matrix: made by tests/interop/linux/matrix.sh -->\n", "\n<!-- matrix end -->"
    match = re.search(re.escape(begin) + "(.*)" + re.escape(end), text, re.S)
    if match is None:
        print(f"{page} has no place for the table")
        return 1
    if match[1] == new_table:
        return 0
    if arguments[3:]:
        page.write_text(text[: match.start(1)] + new_table + text[match.end(1) :])
        return 0
    print(new_table)
    return 1


sys.exit(main(sys.argv))
