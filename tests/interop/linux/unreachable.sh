#!/bin/bash
# Connects to a host without a RoCE device.  The connecting side must report UNREACHABLE.  The test always checks
# Verbena.  It checks Linux only with VB_THOROUGH=1, because Linux's timeout takes 2 minutes.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_pair 1500
if [ -n "${VB_THOROUGH:-}" ]; then
  (guest run --timeout 200 "$work/guest.b" rping -c -a "$(address_of a 4)" -C 1 >"$work/linux" 2>&1) &
  linux=$!
  if wait $linux; then fail "Linux connected to a host without a device"; fi
  grep -q UNREACHABLE "$work/linux" || fail "Linux: $(cat "$work/linux")"
  echo "Linux: UNREACHABLE"
fi
on b rdma link delete rxe0
if run_program a rping -c -a "$(address_of b 4)" -C 1 >"$work/ours" 2>&1; then fail "Verbena connected to a host without a device"; fi
grep -q UNREACHABLE "$work/ours" || fail "Verbena: $(cat "$work/ours")"
echo "Verbena: UNREACHABLE"
