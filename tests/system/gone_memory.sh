#!/bin/bash
# A program registers memory, and then unmaps it, protects it or truncates its file (tests/programs/gone_memory.c).  The
# requests of the program and of its peer must end with an error, and the program must get no signal.
. "$(dirname "$0")/lib.sh"
program=$VB_PREFIX/tests/programs/gone_memory

# The program prints a line for each of 18 cases: three ways to lose memory, with six operations each.
run_program() {
  verbena run -- timeout 60 "$@" >"$work/out" 2>&1 || fail "$*: exit $?: $(cat "$work/out")"
  [ "$(grep -c '^good ' "$work/out")" -eq 18 ] || fail "$*: $(cat "$work/out")"
}

run_program "$program"
run_program "$program" handlers
run_program "$program" blocked
[ -n "${VB_PRELOAD:-}" ] || ! command -v valgrind >/dev/null || run_program valgrind --tool=none -q "$program"
