#!/bin/bash
# ctest: PLAIN
# The destruction of an object must not take many more instructions among 2,048 objects than among 64.  Objects are
# destroyed in the order of their creation, or in reverse order.  The test is PLAIN (not in preset asan), because
# Valgrind cannot run programs with AddressSanitizer.
. "$(dirname "$0")/lib.sh"
need valgrind python3

cd "$work"
# Only the first thread destroys objects, so only its dumps (out*-01) are read.  The progress thread may handle messages
# about the creation of objects at the same time.  Fast bins of malloc are disabled, because with them one free()
# may have to merge the memory of thousands of objects that were freed before.
GLIBC_TUNABLES=glibc.malloc.mxfast=0 verbena run -- valgrind --tool=callgrind --separate-threads=yes --callgrind-out-file="$work/out" "$VB_PREFIX/tests/programs/destroys" \
  >"$work/text" 2>&1 || { [ $? -ne 77 ] || skip "$(tail -1 "$work/text")"; fail "$(cat "$work/text")"; }
python3 - "$work"/out*-01 <<'END'
import re, sys

cost = {}
for name in sys.argv[1:]:
    text = open(name).read()
    reason = re.search(r'^desc: Trigger: Client Request: (\S+) (\d+) (\d+) (\S+)$', text, re.M)
    if not reason:
        continue
    kind, objects, count, order = reason.groups()
    total = int(re.search(r'^(?:totals|summary): (\d+)', text, re.M)[1])
    cost.setdefault((kind, order), {})[int(objects)] = total // int(count)
problems = []
for (kind, order), by_size in sorted(cost.items()):
    few, many = by_size[min(by_size)], by_size[max(by_size)]
    print(f'{kind:14} {order:12} {few:8} {many:8} instructions')
    # More objects need some more instructions, because trees and heaps have a few more levels.
    if many > 1.5 * few + 500:
        problems.append(f'{kind}, {order}: {few} instructions among few objects, {many} among many')
if len(cost) != 18:
    problems.append(f'{len(cost)} counts, not 18')
sys.exit('\n'.join(problems) if problems else 0)
END
