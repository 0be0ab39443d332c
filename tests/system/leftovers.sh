#!/bin/bash
# After a program has closed many connections, the library must give their memory back to the system.
. "$(dirname "$0")/lib.sh"
limit=8192  # KiB
[ -z "${VB_PRELOAD:-}" ] || limit=10000000  # the sanitizer's allocator keeps freed memory

verbena run -- "$VB_PREFIX/tests/programs/leftovers" 8000 $limit >"$work/out" 2>&1 || fail "$(cat "$work/out")"
cat "$work/out"
