#!/bin/bash
# ctest: PLAIN
# A program with two UCX contexts must have the verbs transports in both.  UCX looks for devices in the file system, so
# it needs --sysfs.
. "$(dirname "$0")/lib.sh"
program=$VB_PREFIX/tests/programs/ucx_contexts
[ -x "$program" ] || skip "libucx-dev is not installed"
unshare --mount true 2>/dev/null || skip "no mount namespaces here"

verbena run --sysfs -- env UCX_TLS=rc_verbs,ud_verbs,self UCX_LOG_LEVEL=warn "$program" >"$work/out" 2>&1 ||
  fail "$(cat "$work/out")"
! grep -q 'ERROR\|WARN' "$work/out" || fail "$(cat "$work/out")"
for context in one other; do
  sed -n "/^$context:/,/^other:/p" "$work/out" >"$work/$context"
done
sed -n '/^other:/,$p' "$work/out" >"$work/other"
for context in one other; do
  grep -q verbena0 "$work/$context" || fail "UCX's $context context has no verbena0: $(cat "$work/out")"
done
