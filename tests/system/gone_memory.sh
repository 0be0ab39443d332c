#!/bin/bash
# ctest: TIMEOUT 120
# A program unmaps, protects or shortens memory that it has registered (tests/programs/gone_memory.c).  Its requests and
# those of its peer must end in error, and it must get no signal.
. "$(dirname "$0")/lib.sh"
program=$VB_PREFIX/tests/programs/gone_memory

# The program prints a line for each of three ways to lose memory and six operations.
gone_memory() {
  verbena run -- timeout 60 "$@" >"$work/out" 2>&1 || fail "$*: exit $?: $(cat "$work/out")"
  [ "$(grep -c '^good ' "$work/out")" -eq 18 ] || fail "$*: $(cat "$work/out")"
}

gone_memory "$program"
gone_memory "$program" handlers
gone_memory "$program" blocked
[ -n "${VB_PRELOAD:-}" ] || ! command -v valgrind >/dev/null || gone_memory valgrind --tool=none -q "$program"
