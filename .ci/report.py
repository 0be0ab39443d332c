"""Reads the results of ctest for .ci/run.

  report.py skipped PRESET         prints the skipped tests, as NAME<tab>REASON
  report.py failed PRESET          prints the tests that failed
  report.py table PRESET...        prints the times of all tests, and why each test is in its presets
  report.py costs                  writes tests/costs.txt from the times of preset dev

All read build/PRESET/junit.xml and build/PRESET/times (tests/measured).  Run from the repository.
"""
import pathlib
import re
import sys
import xml.etree.ElementTree as xml

# Says why a test is in a preset.  The first pattern that matches the test's name counts.
DEV, ASAN, TSAN, RELEASE = "dev", "asan", "tsan", "release"
REASONS = [
    (r"tidy\.", {DEV: "checks sources, which are the same for all presets"}),
    (r"(interop\.|suites\.)", {DEV: "fetches what other tests need", ASAN: "fetches what other tests need"}),
    (r"fuzz\.", {DEV: "library assertions in decoders", ASAN: "memory errors in decoders"}),
    (r"abi\.", {DEV: "the C libraries behave as rdma-core's", ASAN: "memory errors of the C libraries"}),
    (r"system\.linux_", {DEV: "Linux understands us, and we Linux", ASAN: "packets of Linux reach our decoders"}),
    (r"system\.", {DEV: "the products behave as documented", ASAN: "memory errors of the products there"}),
    (r"", {DEV: "behaviour, with library assertions", ASAN: "memory errors, undefined behaviour",
           TSAN: "data races between its threads"}),
]


def cases_of(preset):
    return list(xml.parse(f"build/{preset}/junit.xml").iter("testcase"))


def skipped(preset):
    """Prints skipped tests of ctest, and skipped GoogleTests in tests that passed."""
    for case in cases_of(preset):
        name, output = case.get("name"), case.findtext("system-out") or ""
        if case.get("status") in ("notrun", "disabled") or case.find("skipped") is not None:
            last = (output.strip().splitlines() or ["no reason given"])[-1]
            print(f"{name}\t{last}")
        for inner in sorted(set(re.findall(r"^\[  SKIPPED \] (\w+(?:/\w+)?\.[\w/]+)", output, re.M))):
            print(f"{inner}\tin {name}")


def failed(preset):
    for case in cases_of(preset):
        if case.get("status") == "fail" or case.find("failure") is not None:
            print(f"failed: {preset} {case.get('name')}")


def times_of(preset):
    """Returns {test: (wall, processor)}, in seconds.  The processor time is None if the test was ended by a timeout."""
    times = {}
    for case in cases_of(preset):
        wall, processor = float(case.get("time")), None
        file = pathlib.Path(f"build/{preset}/times/{case.get('name')}")
        words = file.read_text().split() if file.is_file() else []
        if len(words) == 3:
            wall, processor = float(words[0]), float(words[1]) + float(words[2])
        times[case.get("name")] = (wall, processor)
    return times


def table(*presets):
    times = {preset: times_of(preset) for preset in presets}
    names = sorted({name for tests in times.values() for name in tests},
                   key=lambda name: -sum(tests[name][0] for tests in times.values() if name in tests))
    print("Times of the tests: wall and processor time in seconds, and why the test is in the preset")
    for name in names:
        reasons = next(reasons for pattern, reasons in REASONS if re.match(pattern, name))
        cells = []
        for preset in presets:
            if name in times[preset]:
                wall, processor = times[preset][name]
                used = "?" if processor is None else f"{processor:.1f}"
                cells.append(f"{preset} {wall:.1f} {used} ({reasons.get(preset, 'no reason is known')})")
        print(f"  {name}: {'; '.join(cells)}")
    for preset in presets:
        walls = [wall for wall, _ in times[preset].values()]
        processors = [processor or 0 for _, processor in times[preset].values()]
        print(f"{preset}: {len(walls)} tests, {sum(walls):.0f} s in sum, {sum(processors):.0f} s of processor time")


def costs():
    file = pathlib.Path("tests/costs.txt")
    lines = [line for line in file.read_text().splitlines() if line.startswith("#")]
    for name, (wall, processor) in sorted(times_of(DEV).items()):
        if processor is not None and wall >= 1:
            lines.append(f"{name} {wall:.0f} {processor:.0f}")
    file.write_text("\n".join(lines) + "\n")


COMMANDS = {"skipped": skipped, "failed": failed, "table": table, "costs": costs}
if len(sys.argv) < 2 or sys.argv[1] not in COMMANDS:
    sys.exit(__doc__)
COMMANDS[sys.argv[1]](*sys.argv[2:])
