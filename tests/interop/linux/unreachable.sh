#!/bin/bash
# A peer exists and has no RoCE any more: both sides give up and say UNREACHABLE.
#   VB_PATIENT=1   waits for Linux to give up, too, which takes 2 minutes
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_pair 1500
if [ -n "${VB_PATIENT:-}" ]; then
  (guest run --timeout 200 "$work/guest.b" rping -c -a "$(address_of a 4)" -C 1 >"$work/linux" 2>&1) &
  linux=$!
  if wait $linux; then fail "Linux connected to nobody"; fi
  grep -q UNREACHABLE "$work/linux" || fail "Linux: $(cat "$work/linux")"
  echo "Linux: UNREACHABLE"
fi
on b rdma link delete rxe0
if runs a rping -c -a "$(address_of b 4)" -C 1 >"$work/ours" 2>&1; then fail "connected to nobody"; fi
grep -q UNREACHABLE "$work/ours" || fail "ours: $(cat "$work/ours")"
echo "ours: UNREACHABLE"
