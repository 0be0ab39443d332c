#!/bin/bash
# ctest: PLAIN
# Checks that the benchmarks run, and that scripts can read their output.  No speed is checked.
. "$(dirname "$0")/lib.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need ibv_rc_pingpong python3 opensm

# Omits the part `guest`, whose emulated machines take half a minute to start.  The test linux_one_machine starts such
# machines.
parts=()
for part in pingpong perftest host_peers two_hosts incast fabrics connect cmtime start memory micro instructions jobs; do parts+=(--only "$part"); done
python3 "$VB_SOURCE/bench/bench.py" --prefix "$VB_PREFIX" --preload "${VB_PRELOAD:-}" \
  --rounds 1 --scale 0.002 --picture "$work/picture.svg" --job-picture "$work/jobs.svg" "${parts[@]}" >"$work/table" 2>"$work/problems" ||
  fail "bench.py: exit $?: $(cat "$work/problems")"

# Each row must have a figure of Verbena.  A row that names a peer must also have the peer's figure and a ratio.
python3 - "$work/table" <<'PYTHON' || fail "$(cat "$work/table")"
import re, sys
FIGURE = r"-?[\d,]+(\.\d+)?( \(-?[\d,.]+--?[\d,.]+\))?"
rows, groups, has_peers = 0, set(), True
for line in open(sys.argv[1]):
    if line.startswith("|") and "|---" not in line and not line.startswith("| "):
        sys.exit(f"cannot read: {line}")
    if line.startswith("| mode"):  # the tables of the section about jobs are checked below
        has_peers = False
    if line.startswith("| what"):
        has_peers = True
    if not has_peers:
        continue
    if line.startswith("## "):
        groups.add(line[3:].split()[0].rstrip(","))
    if not line.startswith("| ") or line.startswith("| what"):
        continue
    what, unit, ours, peer, theirs, ratio = (cell.strip() for cell in line.split("|")[1:-1])
    good = what and unit and re.fullmatch(FIGURE, ours)
    good = good and (not peer or re.fullmatch(FIGURE, theirs) and re.fullmatch(r"[\d,.]+", ratio))
    if not good:
        sys.exit(f"cannot read: {line}")
    rows += 1
wanted = {"Ping-pong", "Two", "Connections", "Start", "Memory"}
if not wanted <= groups or rows < 25:
    sys.exit(f"{rows} rows in {groups}")
print(f"{rows} rows can be read")
PYTHON

# The picture must be well-formed, and have a bar for each row that compares speeds.  The jobs have a separate picture.
python3 - "$work/table" "$work/picture.svg" <<'PYTHON' || fail "the picture does not show the table"
import re, sys
import xml.etree.ElementTree as tree
UNITS = "Gbit/s|MB/s|per second|million messages/s|us|us, typical"
PEER = r"(?!Verbena on one|TCP on one|one queue pair)[^| ][^|]*"  # the picture has no bars for the excluded peers
compared = sum(bool(re.match(rf"\| [^|]+ \| ({UNITS}) \| [^|]+ \| {PEER} \|", line))
               for line in open(sys.argv[1]).read().split("## Job start")[0].splitlines())
bars = tree.parse(sys.argv[2]).getroot().findall("{http://www.w3.org/2000/svg}rect[@class='bar']")
sys.exit(0 if len(bars) == compared > 10 else f"{len(bars)} bars for {compared} rows")
PYTHON

# The simulated and the real jobs must send as many queries as their mode needs.
python3 - "$work/table" "$work/jobs.svg" <<'PYTHON' || fail "the section about jobs: $(cat "$work/table")"
import re, sys
import xml.etree.ElementTree as tree
found = {}
for line in open(sys.argv[1]):
    cells = [cell.strip().replace(",", "") for cell in line.split("|")[1:-1]]
    if re.match(r"\| (get|table|uncached)[,:]", line):
        found[cells[0]] = [float(cell) for cell in cells[1:]]
for name, column, wanted in (("get 16", 1, 16 * 15), ("table 16", 1, 16), ("uncached 16", 1, 16 * 15 * 4),
                             ("get first job", 1, 4 * 3), ("get second job", 1, 0), ("table first job", 1, 0),
                             ("table first job", 2, 4)):
    if found[name][column] != wanted:
        sys.exit(f"{name}: {found[name]}, not {wanted} in column {column}")
if found["uncached second job"][1] < 4 * 3 * 2:
    sys.exit(f"without the cache: {found['uncached second job']}")
for name, values in found.items():
    if ": " in name and values[3] != 0:
        sys.exit(f"{name}: {values[3]} routes failed")
lines = tree.parse(sys.argv[2]).getroot().findall("{http://www.w3.org/2000/svg}polyline")
sys.exit(0 if len(lines) == 6 else f"{len(lines)} lines in the picture")
PYTHON

# Wrong arguments are refused before anything is built.
expect_refusal() {
  local status=0
  "$VB_SOURCE/scripts/bench" "$@" >"$work/output" 2>&1 || status=$?
  [ "$status" -eq 2 ] || fail "scripts/bench $*: exit $status, not 2: $(cat "$work/output")"
}
expect_refusal --rounds many
expect_refusal --rounds
expect_refusal --fast
expect_refusal --record --only memory
expect_refusal --record-jobs --only memory
"$VB_SOURCE/scripts/bench" --help >"$work/output"
grep -q '^usage: scripts/bench' "$work/output" || fail "no usage: $(cat "$work/output")"
