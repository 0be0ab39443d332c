"""Runs clang-tidy over the sources of src/ (not their tests), and caches clean results.

Arguments: the build directory with compile_commands.json.  Run from the repository.

Clean results are cached (clean_files.py).  run-clang-tidy is not used, because it has only one result for all files.

Most of clang-tidy's time is for the standard library's headers, which every file includes.  So many files are checked
together, by a source that includes all of them.  If two files have conflicting names, different sources include them.  If
clang-tidy finds a fault in such a source, each of its files is checked alone.
"""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

import clean_files
import compile_commands

TIDY = "clang-tidy-19"  # before 19, clang cannot read <expected> of GCC 12's library
CLANG = "clang++-19"
FILES_PER_SOURCE = 40  # at most
ERROR = re.compile(r"^(/[^:\n]+):\d+:\d+: (?:fatal )?error:", re.MULTILINE)
FLAGS = ["--quiet", "--extra-arg=-Wthread-safety", "--extra-arg=-Wno-error",
         "--extra-arg=-Wno-unknown-warning-option", "--extra-arg=-Wno-unknown-attributes",
         "--extra-arg=-Wno-ignored-optimization-argument"]
if os.environ.get("VB_TIDY_CHECKS"):  # scripts/soak: checks in addition to those of .clang-tidy
    FLAGS.append("--checks=" + os.environ["VB_TIDY_CHECKS"])


class Group:
    """Makes the sources that include several files.  `flags` are for parsing any of these."""

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
    common = subprocess.run([TIDY, "--version"], capture_output=True, check=True).stdout
    common += (root / ".clang-tidy").read_bytes() + " ".join(FLAGS).encode()

    work = build / "tidy-sources"
    work.mkdir(exist_ok=True)
    known = clean_files.CleanFiles(build, root, common)
    stale, clean, together = {}, 0, {}
    for path, words, joined in compile_commands.sources_of(build, root):
        if path.stem.endswith(("_test", "_fuzz")):
            continue
        flags = tuple(compile_commands.parse_flags(words))
        key = known.key_of(path, flags)
        if known.contains(key):
            clean += 1
            continue
        stale[path] = (key, flags)
        # Files that the build joins have no conflicting names, and neither have files of different layers, because each
        # layer has a namespace.  But adapter and client define the same C functions.  A main.cc and the other files may
        # have conflicts within their folder.
        is_adapter = path.is_relative_to(root / "src/adapter")
        folder = "" if joined and not is_adapter else str(path.parent.relative_to(root / "src")) + (" main" if path.stem == "main" else "")
        together.setdefault(folder, []).append(path)

    def groups_of(folder, paths):
        """Yields (group, files).  Files with the same flags come together, because they include the same headers."""
        paths.sort(key=lambda path: (stale[path][1], path))
        for start in range(0, len(paths), FILES_PER_SOURCE):
            batch = paths[start:start + FILES_PER_SOURCE]
            flags = list(dict.fromkeys(flag for path in batch for flag in stale[path][1]))
            yield Group(f"{folder.replace('/', '_').replace(' ', '_') or 'joined'}_{start}", work, flags), batch

    def check(path):
        run = subprocess.run([TIDY, *FLAGS, str(path), "--", *stale[path][1]], capture_output=True, text=True,
                             check=False)
        if run.returncode == 0:
            known.add(stale[path][0])
            return True
        print(f"{path.relative_to(root)}:\n{run.stdout}{run.stderr}", flush=True)
        return False

    def is_clean(source, flags):
        return subprocess.run([TIDY, f"--config-file={root / '.clang-tidy'}", *FLAGS, str(source), "--", *flags],
                              capture_output=True, check=False).returncode == 0

    def check_group(group_and_paths):
        group, paths = group_and_paths
        results = []
        # Most groups are clean and have no conflicts.  So the search for conflicts, which parses everything once more,
        # runs only if clang-tidy finds something in the whole group.
        whole = 1 < len(paths) <= FILES_PER_SOURCE and is_clean(group.source_of(paths), group.flags)
        batches = [paths] if whole else group.split(paths)
        for batch in batches:
            batch_is_clean = whole or len(batch) > 1 and is_clean(group.source_of(batch), group.flags)
            for path in batch:
                if batch_is_clean:
                    known.add(stale[path][0])
                results.append(batch_is_clean or check(path))
        return results

    start = time.monotonic()
    groups = [group for folder, paths in together.items() for group in groups_of(folder, paths)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = [result for group in pool.map(check_group, groups) for result in group]
    faulty = results.count(False)
    print(f"clang-tidy: {len(results)} files checked in {time.monotonic() - start:.0f} s, "
          f"{clean} known to be clean, {faulty} with faults")
    return bool(faulty)


sys.exit(main())
