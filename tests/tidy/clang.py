"""clang-tidy over the sources of src/ (not their tests), keeping what was found clean.

Arguments: the build directory with compile_commands.json.  Run from the repository.

A file found clean is not looked at again until its text, a project header that it reaches, the
compile command, .clang-tidy or clang-tidy itself changes: a hash of all that names an empty file
in $VB_TIDY_CACHE, else in ~/.cache/verbena-tidy, else in the build directory.  run-clang-tidy is
not used because it has one verdict for all files, and this needs one for each.
"""
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import time

TIDY = "clang-tidy-19"  # before 19, clang cannot read <expected> of GCC 12's library
JOBS = 2
FLAGS = ["--quiet", "--extra-arg=-Wno-error", "--extra-arg=-Wno-unknown-warning-option",
         "--extra-arg=-Wno-unknown-attributes", "--extra-arg=-Wno-ignored-optimization-argument"]
if os.environ.get("VB_TIDY_CHECKS"):  # scripts/soak: checks beside those of .clang-tidy
    FLAGS.append("--checks=" + os.environ["VB_TIDY_CHECKS"])
INCLUDE = re.compile(rb'^\s*#\s*include\s*["<]([\w./-]+)[">]', re.MULTILINE)


def reached_from(path, root, known):
    """The file and every project header it includes, directly or through others."""
    todo, seen = [path], set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        if file not in known:
            text = file.read_bytes()
            bases = (file.parent, root / "src", root / "include")
            includes = [base / name.decode() for name in INCLUDE.findall(text) for base in bases]
            known[file] = (text, [found.resolve() for found in includes if found.is_file()])
        todo += known[file][1]
    return sorted(seen)


def key_of(entry, path, root, known, common):
    digest = hashlib.sha256(common)
    command = entry.get("arguments") or shlex.split(entry["command"])
    digest.update("\0".join(word.replace(str(root), "") for word in command
                            if not word.endswith((".o", ".d"))).encode())
    for file in reached_from(path, root, known):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + known[file][0])
    return digest.hexdigest()


def cache_directory(build):
    for candidate in (os.environ.get("VB_TIDY_CACHE"), pathlib.Path.home() / ".cache/verbena-tidy",
                      build / "tidy-cache"):
        try:
            if candidate:
                pathlib.Path(candidate).mkdir(parents=True, exist_ok=True)
                if os.access(candidate, os.W_OK):
                    return pathlib.Path(candidate)
        except OSError:
            continue
    sys.exit("no directory to keep results in")


def main():
    if not shutil.which(TIDY):
        print(f"skipped: {TIDY} is not installed (scripts/deps test installs it)")
        return 77
    build = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path.cwd().resolve()
    cache = cache_directory(build)
    common = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    common += (root / ".clang-tidy").read_bytes() + " ".join(FLAGS).encode()

    known, stale, clean = {}, {}, 0
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(root / "src") or not path.is_file():
            continue
        if path.stem.endswith(("_test", "_fuzz")):
            continue
        key = key_of(entry, path, root, known, common)
        if (cache / key).exists():
            clean += 1
        else:
            stale[path] = key

    def check(path):
        run = subprocess.run([TIDY, "-p", str(build), *FLAGS, str(path)], capture_output=True,
                             text=True, check=False)
        if run.returncode == 0:
            (cache / stale[path]).touch()
            return True
        print(f"{path.relative_to(root)}:\n{run.stdout}{run.stderr}", flush=True)
        return False

    begun = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        verdicts = list(pool.map(check, sorted(stale)))
    faulty = verdicts.count(False)
    print(f"clang-tidy: {len(verdicts)} files checked in {time.monotonic() - begun:.0f} s, "
          f"{clean} known to be clean, {faulty} with faults")
    return bool(faulty)


sys.exit(main())
