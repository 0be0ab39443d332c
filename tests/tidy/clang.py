"""Runs clang-tidy over the sources of src/ (not their tests), and caches clean results.

Arguments: the build directory with compile_commands.json.  Run from the repository.

A clean file is not checked again until its text, a project header that it includes, the compile command, .clang-tidy or
clang-tidy itself changes.  For each clean file the cache has an empty file whose name is a hash of all these.  The
cache is the first of these directories that can be written: $VB_TIDY_CACHE, ~/.cache/verbena-tidy, or one in the build
directory.  run-clang-tidy is not used, because it has only one result for all files.

Most of clang-tidy's time is for the standard library's headers, which every file includes.  So the files of a folder are
checked together, by a source that includes all of them.  If two files have conflicting names, different sources include
them.  If clang-tidy finds a fault in such a source, each of its files is checked alone.
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
CLANG = "clang++-19"
JOBS = 2
FILES_PER_SOURCE = 50  # at most
ERROR = re.compile(r"^(/[^:\n]+):\d+:\d+: (?:fatal )?error:", re.MULTILINE)
FLAGS = ["--quiet", "--extra-arg=-Wthread-safety", "--extra-arg=-Wno-error",
         "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-unknown-attributes",
         "--extra-arg=-Wno-ignored-optimization-argument"]
if os.environ.get("VB_TIDY_CHECKS"):  # scripts/soak: checks in addition to those of .clang-tidy
    FLAGS.append("--checks=" + os.environ["VB_TIDY_CHECKS"])
INCLUDE = re.compile(rb'^\s*#\s*include\s*["<]([\w./-]+)[">]', re.MULTILINE)


def included_files(path, root, file_cache):
    """Returns the file and all project headers that it includes, directly or indirectly."""
    todo, seen = [path], set()
    while todo:
        file = todo.pop()
        if file in seen:
            continue
        seen.add(file)
        if file not in file_cache:
            text = file.read_bytes()
            bases = (file.parent, root / "src", root / "include")
            includes = [base / name.decode() for name in INCLUDE.findall(text) for base in bases]
            file_cache[file] = (text, [found.resolve() for found in includes if found.is_file()])
        todo += file_cache[file][1]
    return sorted(seen)


def key_of(entry, path, root, file_cache, common):
    digest = hashlib.sha256(common)
    command = entry.get("arguments") or shlex.split(entry["command"])
    digest.update("\0".join(word.replace(str(root), "") for word in command
                            if not word.endswith((".o", ".d"))).encode())
    for file in included_files(path, root, file_cache):
        digest.update(str(file.relative_to(root)).encode() + b"\0" + file_cache[file][0])
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


def flags_of(entry):
    """Returns the compiler flags for parsing the file, without those for its output."""
    words = entry.get("arguments") or shlex.split(entry["command"])
    flags = [word for word in words if word.startswith(("-I", "-D", "-std"))]
    for word, next_word in zip(words, words[1:]):
        if word == "-isystem":
            flags += [word, next_word]
    return tuple(flags)


class Group:
    """Holds files with the same compiler flags, and makes the sources that include several of them."""

    def __init__(self, name, directory, flags):
        self.name, self.directory, self.flags, self.sources = name, directory, flags, 0

    def source_of(self, paths):
        self.sources += 1
        source = self.directory / f"{self.name}_{self.sources}.cc"
        # NOLINT, because clang-tidy reports each include of a .cc file.
        source.write_text("".join(f'#include "{path}"  // NOLINT(bugprone-suspicious-include)\n'
                                  for path in paths))
        return source

    def split(self, paths):
        """Yields lists of files that one source can include.  Together the lists are `paths`."""
        while paths:
            batch, rest = paths[:FILES_PER_SOURCE], paths[FILES_PER_SOURCE:]
            while len(batch) > 1:
                run = subprocess.run([CLANG, "-fsyntax-only", "-w", "-ferror-limit=0", *self.flags,
                                      str(self.source_of(batch))],
                                     capture_output=True, text=True, check=False)
                if run.returncode == 0:
                    break
                faulty_files = {pathlib.Path(found) for found in ERROR.findall(run.stderr)}
                # The first file always remains in the batch, because no earlier file can conflict with it.
                conflicting = [path for path in batch[1:] if path in faulty_files] or batch[1:]
                batch = [path for path in batch if path not in conflicting]
                rest = conflicting + rest
            yield batch
            paths = rest


def main():
    if not shutil.which(TIDY):
        print(f"skipped: {TIDY} is not installed (scripts/deps test installs it)")
        return 77
    build = pathlib.Path(sys.argv[1]).resolve()
    root = pathlib.Path.cwd().resolve()
    cache = cache_directory(build)
    common = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    common += (root / ".clang-tidy").read_bytes() + " ".join(FLAGS).encode()

    work = build / "tidy-sources"
    work.mkdir(exist_ok=True)
    file_cache, stale, clean, groups = {}, {}, 0, {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(root / "src") or not path.is_file():
            continue
        if path.stem.endswith(("_test", "_fuzz")):
            continue
        key = key_of(entry, path, root, file_cache, common)
        if (cache / key).exists():
            clean += 1
        else:
            stale[path] = key
            # main.cc does not belong to the layer, and may have names that files of the layer also have.
            folder = "_".join(path.relative_to(root / "src").parts[:-1]) + ("_main" if path.stem == "main" else "")
            flags = flags_of(entry)
            name = f"{folder}{sum(1 for known_folder, _ in groups if known_folder == folder) or ''}"
            group, paths = groups.setdefault((folder, flags), (Group(name, work, flags), []))
            paths.append(path)

    def check(path):
        run = subprocess.run([TIDY, "-p", str(build), *FLAGS, str(path)], capture_output=True,
                             text=True, check=False)
        if run.returncode == 0:
            (cache / stale[path]).touch()
            return True
        print(f"{path.relative_to(root)}:\n{run.stdout}{run.stderr}", flush=True)
        return False

    def is_clean(source, flags):
        return subprocess.run([TIDY, f"--config-file={root / '.clang-tidy'}", *FLAGS, str(source), "--", *flags],
                              capture_output=True, check=False).returncode == 0

    def check_group(group_and_paths):
        group, paths = group_and_paths
        paths.sort()
        results = []
        # Most groups are clean and have no conflicts.  So the search for conflicts, which parses everything once more,
        # runs only if clang-tidy finds something in the whole group.
        whole = 1 < len(paths) <= FILES_PER_SOURCE and is_clean(group.source_of(paths), group.flags)
        batches = [paths] if whole else group.split(paths)
        for batch in batches:
            batch_is_clean = whole or len(batch) > 1 and is_clean(group.source_of(batch), group.flags)
            for path in batch:
                if batch_is_clean:
                    (cache / stale[path]).touch()
                results.append(batch_is_clean or check(path))
        return results

    start = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(JOBS) as pool:
        # Starts the largest groups first, so that no large group still runs when all others have ended.
        found = pool.map(check_group, sorted(groups.values(), key=lambda g: -len(g[1])))
        results = [result for group in found for result in group]
    faulty = results.count(False)
    print(f"clang-tidy: {len(results)} files checked in {time.monotonic() - start:.0f} s, "
          f"{clean} known to be clean, {faulty} with faults")
    return bool(faulty)


sys.exit(main())
