"""Checks that every header compiles alone, without other headers before it.

Arguments: the build directory with compile_commands.json.  Run from the repository.

If a source includes a header first, the build has already shown that the header compiles alone.  So only the other
headers are compiled here.  The compiler generates no code, so the check takes seconds; compiling all 200 headers to
object files took nine minutes.  Public headers are always compiled, with include/ as the only include directory,
because users have nothing else.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import time

FIRST_INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([\w./-]+)[">]', re.MULTILINE)
PUBLIC_FLAGS = ["g++", "-std=c++23", "-Iinclude"]


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path.cwd().resolve()
    included_first, layer_flags = set(), {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(root / "src") or not path.is_file():
            continue
        if first := FIRST_INCLUDE.search(path.read_text()):
            included_first.add(first.group(1))
        words = entry.get("arguments") or shlex.split(entry["command"])
        flags = [word for word in words if word.startswith(("-I", "-D", "-std", "-W"))]
        for i, word in enumerate(words[:-1]):
            if word == "-isystem":
                flags += [word, words[i + 1]]
        layer = path.relative_to(root / "src").parts[0]
        compiler = next(word for word in words if not word.endswith("ccache"))
        # Keeps the longest flags of each layer.  In layers whose tests are compiled one by one, these are the flags of
        # tests.  In other layers the flags of tests are unknown, so GoogleTest must be in a default directory.
        longest = layer_flags.get(layer, [])
        layer_flags[layer] = max(longest, [compiler, *flags], key=len)

    jobs = []
    for header in sorted((root / "src").rglob("*.h")):
        name = header.relative_to(root / "src")
        if str(name) not in included_first:
            jobs.append((header, layer_flags.get(name.parts[0], PUBLIC_FLAGS + ["-Isrc"])))
    jobs += [(header, PUBLIC_FLAGS) for header in sorted((root / "include").rglob("*.h"))]

    def compiles(job):
        header, flags = job
        run = subprocess.run(
            [*flags, "-fsyntax-only", "-Werror", "-x", "c++", "-include", str(header), os.devnull],
            capture_output=True, text=True, check=False)
        if run.returncode:
            print(f"{header.relative_to(root)} does not compile alone:\n{run.stderr}", flush=True)
        return run.returncode == 0

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = list(pool.map(compiles, jobs))
    faulty = results.count(False)
    print(f"{len(results)} headers compiled in {time.monotonic() - start:.0f} s, {len(included_first)} included first "
          f"by a source, {faulty} do not compile alone")
    return bool(faulty)


sys.exit(main())
