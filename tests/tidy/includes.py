"""Checks that each file includes only headers of its own layer, and of layers that the table allows.

Arguments: the table of src/CMakeLists.txt, with a word LAYER=ALLOWED,ALLOWED... for each layer.  ALLOWED are all layers
whose headers it may include, directly or indirectly.  Tests may also include sim and the layers that sim may include.
Run from the repository.
"""
import pathlib
import re
import sys

INCLUDE = re.compile(r'\s*#\s*include\s*["<]((?:\.\./)*)(\w+)/')


def faults_of(path, layer, allowed_layers, layers):
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not (match := INCLUDE.match(line)):
            continue
        up, top_folder = match.groups()
        if up:
            yield f"{path}:{number}: name the header from src/ or include/, not by ../"
        elif top_folder in layers and top_folder not in allowed_layers:
            yield f"{path}:{number}: {layer} may not include {top_folder}/ (see src/CMakeLists.txt)"


def main():
    allowed = {}
    for row in sys.argv[1:]:
        layer, _, names = row.partition("=")
        allowed[layer] = {layer, *filter(None, names.split(","))}
    layers_for_tests = {"sim"} | allowed.get("sim", set())

    faults = []
    files = 0
    for path in sorted(pathlib.Path("src").rglob("*")):
        if path.suffix not in (".cc", ".h"):
            continue
        files += 1
        layer = path.parts[1]
        if layer not in allowed:
            faults.append(f"{path}: '{layer}' is no layer of src/CMakeLists.txt")
            continue
        is_test = path.stem.endswith(("_test", "_fuzz"))
        allowed_layers = allowed[layer] | (layers_for_tests if is_test else set())
        faults += faults_of(path, layer, allowed_layers, allowed)
    for path in sorted(pathlib.Path("include").rglob("*.h")):
        files += 1
        faults += faults_of(path, "the public API", set(), allowed)

    print("\n".join(faults) if faults else f"{files} files include only what the table allows")
    return bool(faults)


sys.exit(main())
