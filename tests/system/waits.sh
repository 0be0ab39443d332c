#!/bin/bash
# Threads wait for events (tests/programs/waits.c).  Each event must come exactly once, regardless of the thread that
# receives the agent's messages.  If a thread ends in the middle of a wait, no event may be lost.
. "$(dirname "$0")/lib.sh"
programs=$VB_PREFIX/tests/programs
[ -x "$programs/waits" ] || fail "no $programs/waits: it is built with the tests"

# In preset asan the program must not fork, because GCC 12's AddressSanitizer does not release the locks of its
# allocator in the child.
expected_count=17 arguments=()
[ -z "${VB_PRELOAD:-}" ] || expected_count=16 arguments=(forks)
verbena run -- timeout 100 "$programs/waits" "${arguments[@]}" >"$work/waits" 2>&1 || fail "exit $?: $(head -60 "$work/waits")"
cat "$work/waits"
[ "$(grep -c ': ok$' "$work/waits")" -eq $expected_count ] || fail "not all ways of waiting succeeded: $(cat "$work/waits")"
