"""Checks the exported symbols and the dependencies of the shared libraries.

Each exported symbol must have a version.  The symbols of the libraries in WITHOUT_VERSIONS must have none.  A library
may need only the C library, libgcc_s and the other libraries.  Programs must not be able to unload it.

Arguments: the libraries.
"""
import re
import subprocess
import sys

# These libraries replace functions of the C library.  Programs ask for the C library's versions of the functions, and
# would not use functions with another version.
WITHOUT_VERSIONS = ("libverbena-sockets.so", "libverbena-interfaces.so")
NEEDED = re.compile(r"lib(c|m|gcc_s|verbena|ibverbs|rdmacm|ibumad)\.so\.\d+|ld-linux.*")


def output_of(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main():
    faults = []
    counts = []
    for library in sys.argv[1:]:
        name = library.rsplit("/", 1)[-1]
        exported = [line.split()[-1] for line in
                    output_of("nm", "-D", "--defined-only", "--with-symbol-versions", library).splitlines()]
        # nm also lists the names of the versions, without "@".  Any other symbol without "@" is a fault.
        versions = {symbol for symbol in exported if "@" not in symbol}
        version_names = set(re.findall(r"Name: (\S+)", output_of("readelf", "-VW", library)))
        if name.startswith(WITHOUT_VERSIONS):
            faults += [f"{name}: exports {symbol} with a version" for symbol in exported if "@" in symbol]
            versions = set()
        faults += [f"{name}: exports {symbol} without a version"
                   for symbol in sorted(versions) if symbol not in version_names]
        counts.append(f"{name}: {len(exported) - len(versions)} symbols")
        if len(exported) == len(versions):
            faults.append(f"{name}: exports nothing")
        dynamic = output_of("readelf", "-dW", library)
        faults += [f"{name}: needs {needed}" for needed in re.findall(r"NEEDED.*\[(.+)\]", dynamic)
                   if not NEEDED.fullmatch(needed)]
        if "NODELETE" not in dynamic:
            faults.append(f"{name}: could be unloaded (-z nodelete is missing)")
    print("\n".join(faults or counts))
    return bool(faults)


sys.exit(main())
