"""Checks that every header compiles alone, without other headers before it.

Arguments: the build directory with compile_commands.json.  Run from the repository.

The compiler generates no code, and clean results are cached (clean_files.py).  If the build compiles a source alone, its
first header needs no check, because the build has shown that it compiles alone.  Public headers are always compiled, with
include/ as the only include directory, because users have nothing else.
"""
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys
import time

import clean_files
import compile_commands

FIRST_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([\w./-]+)[">]', re.MULTILINE)
PUBLIC_FLAGS = ["g++", "-std=c++23", "-Iinclude"]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path.cwd().resolve()
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    known = clean_files.CleanFiles(build, root, version)
    included_first, layer_flags = set(), {}
    for path, words, joined in compile_commands.sources_of(build, root):
        first = FIRST_INCLUDE.search(path.read_text())
        if first and not joined:
            included_first.add(first.group(1))
        warnings = [word for word in words if word.startswith("-W")]
        flags = [words[0], *warnings, *compile_commands.parse_flags(words)]
        layer = path.relative_to(root / "src").parts[0]
        # Keeps the longest flags of each layer, because some headers are for tests, which have more flags than sources.
        longest = layer_flags.get(layer, [])
        layer_flags[layer] = max(longest, flags, key=len)

    jobs = []
    for header in sorted((root / "src").rglob("*.h")):
        name = header.relative_to(root / "src")
        if str(name) not in included_first:
            jobs.append((header, layer_flags.get(name.parts[0], PUBLIC_FLAGS + ["-Isrc"])))
    jobs += [(header, PUBLIC_FLAGS) for header in sorted((root / "include").rglob("*.h"))]

    def compiles(job):
        header, flags = job
        command = [*flags, "-fsyntax-only", "-Werror", "-x", "c++", "-include", str(header), os.devnull]
        key = known.key_of(header, command)
        if known.contains(key):
            return True
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode:
            print(f"{header.relative_to(root)} does not compile alone:\n{run.stderr}", flush=True)
        else:
            known.add(key)
        return run.returncode == 0

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(compiles, jobs))
    faulty = results.count(False)
    print(f"{len(results)} headers checked in {time.monotonic() - start:.0f} s, {len(included_first)} included first "
          f"by a source, {faulty} do not compile alone")
    return bool(faulty)


sys.exit(main())
