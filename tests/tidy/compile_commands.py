"""Reads compile_commands.json for the other scripts of this folder."""
import json
import pathlib
import re
import shlex

INCLUDE = re.compile(r'^#include "([\w./-]+)"$', re.MULTILINE)


def sources_of(build, root):
    """Yields (path, words of the compiler's command, joined) of each source of src/ that the build compiles.

    Most presets compile several sources as one file of build/PRESET/src/joined (cmake/Layer.cmake).  Each source that
    such a file includes has the command of that file, and `joined` is true.
    """
    src = root / "src"
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        words = entry.get("arguments") or shlex.split(entry["command"])
        paths = [path]
        joined = path.parent == build / "src/joined"
        if joined:
            paths = [src / name for name in INCLUDE.findall(path.read_text())]
        for source in paths:
            if source.is_relative_to(src) and source.is_file():
                yield source, words, joined


def parse_flags(words):
    """Returns those words that a compiler needs to parse the file: include directories, macros, and the standard."""
    flags = [word for word in words if word.startswith(("-I", "-D", "-std"))]
    for word, next_word in zip(words, words[1:]):
        if word == "-isystem":
            flags.append(word + next_word)
    return flags
