#!/bin/bash
# Connects to a host without a RoCE device.  The connecting side must report UNREACHABLE: Verbena always, and Linux
# with VB_THOROUGH=1, because its timeout takes 2 minutes.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_pair 1500
if [ -n "${VB_THOROUGH:-}" ]; then
  (guest run --timeout 200 "$work/guest.b" rping -c -a "$(address_of a 4)" -C 1 >"$work/linux" 2>&1) &
  linux=$!
  if wait $linux; then fail "Linux connected to nobody"; fi
  grep -q UNREACHABLE "$work/linux" || fail "Linux: $(cat "$work/linux")"
  echo "Linux: UNREACHABLE"
fi
on b rdma link delete rxe0
if runs a rping -c -a "$(address_of b 4)" -C 1 >"$work/ours" 2>&1; then fail "connected to nobody"; fi
grep -q UNREACHABLE "$work/ours" || fail "Verbena: $(cat "$work/ours")"
echo "Verbena: UNREACHABLE"
