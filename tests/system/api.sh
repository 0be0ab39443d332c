#!/bin/bash
# Tests the C++ API with Verbena's own engine, not with an adapter: features that the examples do not use
# (tests/api/live.cc), and several threads (threads.cc).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for name in live threads; do
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    timeout 30 "$VB_PREFIX/tests/api/$name" >"$work/output" 2>&1 || fail "$name: exit $?: $(cat "$work/output")"
  [ "$(cat "$work/output")" = "all good" ] || fail "$name: $(cat "$work/output")"
done
