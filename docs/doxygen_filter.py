#!/usr/bin/env python3
"""Turns plain comments of a header into those that Doxygen reads (docs/Doxyfile)."""
import re
import sys

for line in open(sys.argv[1], encoding="utf-8"):
    if sys.argv[1].endswith(".md"):
        sys.stdout.write(line)
        continue
    stripped = line.lstrip()
    if stripped.startswith("// ----"):  # a heading between sections
        sys.stdout.write("\n")
    elif stripped.startswith("//") and "NOLINT" not in line:
        # Without the replacement, Doxygen takes the ::ffff of an address for a name, and finds no such name.
        sys.stdout.write(line.replace("//", "///", 1).replace(" ::ffff", " &#58;&#58;ffff"))
    else:
        sys.stdout.write(re.sub(r"([;,{}]) +// (?!NOLINT)", r"\1  ///< ", line, count=1))
