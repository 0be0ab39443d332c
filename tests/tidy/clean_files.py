"""Remembers which files were checked and found clean, for the other scripts of this folder.

A clean file is not checked again until its text, a project header that it includes, its flags, or the tool changes.  For
each clean file the cache has an empty file whose name is a hash of all these.  The cache is the first of these
directories that can be written: $VB_TIDY_CACHE, ~/.cache/verbena-tidy, or one in the build directory.
"""
import hashlib
import os
import pathlib
import re
import sys

INCLUDE = re.compile(rb'^\s*#\s*include\s*["<]([\w./-]+)[">]', re.MULTILINE)


def _cache_directory(build):
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


class CleanFiles:
    """Knows the clean files of one check.  `tool` is all that decides about the result beside file and flags."""

    def __init__(self, build, root, tool):
        self.directory, self.root, self.tool = _cache_directory(build), root, tool
        self.texts = {}  # path -> (text, project headers that the file includes directly)

    def key_of(self, path, flags):
        """Returns the name of the file that says that `path` is clean."""
        digest = hashlib.sha256(self.tool)
        digest.update("\0".join(word.replace(str(self.root), "") for word in flags).encode())
        for file in self._included_files(path):
            digest.update(str(file.relative_to(self.root)).encode() + b"\0" + self.texts[file][0])
        return digest.hexdigest()

    def contains(self, key):
        return (self.directory / key).exists()

    def add(self, key):
        (self.directory / key).touch()

    def _included_files(self, path):
        """Returns the file and all project headers that it includes, directly or indirectly."""
        todo, seen = [path], set()
        while todo:
            file = todo.pop()
            if file in seen:
                continue
            seen.add(file)
            if file not in self.texts:
                text = file.read_bytes()
                bases = (file.parent, self.root / "src", self.root / "include")
                includes = [base / name.decode() for name in INCLUDE.findall(text) for base in bases]
                self.texts[file] = (text, [found.resolve() for found in includes if found.is_file()])
            todo += self.texts[file][1]
        return sorted(seen)
