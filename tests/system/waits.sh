#!/bin/bash
# ctest: TIMEOUT 120
# Threads wait for events (tests/programs/waits.c).  Each event comes once, whichever thread receives the agent's
# messages.  A thread that ends in the middle of a wait takes no event with it.
. "$(dirname "$0")/lib.sh"
programs=$VB_PREFIX/tests/programs
[ -x "$programs/waits" ] || fail "no $programs/waits: it is built with the tests"

# GCC 12's AddressSanitizer does not free its allocator's locks in the child of a fork().
ways=17 without=()
[ -z "${VB_PRELOAD:-}" ] || ways=16 without=(forks)
verbena run -- timeout 100 "$programs/waits" "${without[@]}" >"$work/waits" 2>&1 || fail "exit $?: $(head -60 "$work/waits")"
cat "$work/waits"
[ "$(grep -c ': ok$' "$work/waits")" -eq $ways ] || fail "not all ways of waiting succeeded: $(cat "$work/waits")"
