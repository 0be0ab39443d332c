#!/bin/bash
# ctest: TIMEOUT 60
# The C++ API on the engine itself: what the examples do not use (tests/api/live.cc).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
  timeout 30 "$VB_PREFIX/tests/api/live" >"$work/live" 2>&1 || fail "live: exit $?: $(cat "$work/live")"
[ "$(cat "$work/live")" = "all good" ] || fail "live: $(cat "$work/live")"
