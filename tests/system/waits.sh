#!/bin/bash
# ctest: TIMEOUT 120
# Threads that wait for events (tests/programs/waits.c): each event comes once, whoever hears the
# agent, and a thread that leaves in the middle takes nothing along.
. "$(dirname "$0")/lib.sh"
programs=$VB_PREFIX/tests/programs
[ -x "$programs/waits" ] || fail "no $programs/waits: it is built with the tests"

verbena run -- timeout 100 "$programs/waits" >"$work/waits" 2>&1 || fail "exit $?: $(head -60 "$work/waits")"
cat "$work/waits"
[ "$(grep -c ': ok$' "$work/waits")" -eq 17 ] || fail "not all ways: $(cat "$work/waits")"
