#!/bin/bash
# ctest: PLAIN
# Modules of Python's test suite must have the same results over TCP and under `verbena run --sockets`.  With
# VERBENA_SOCKETS_EARLY=50, the first call of each connection waits up to 50 ms until the connection uses shared memory
# (its ring) instead of TCP.  scripts/suites runs all modules, and the suites of Redis and node.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
[ -x /usr/bin/python3 ] || skip "/usr/bin/python3 is not installed"
/usr/bin/python3 -c 'import test.test_epoll' 2>/dev/null || skip "libpython3.11-testsuite is not installed"
export VERBENA_SOCKETS_EARLY=50
modules=(test_epoll test_asyncore test_asynchat test_ftplib test_httplib test_httpservers test_smtplib test_poplib)
/usr/bin/python3 "$VB_SOURCE/tests/suites/python_suite.py" "$work" "${modules[@]}" >"$work/output" 2>&1 ||
  fail "tests have other results by the ring: $(cat "$work/output")"
cat "$work/output"
# On an idle machine, 550 of 565 cases pass, with 52 MB and 500 rings.  On a busy machine, fewer bytes go through rings.
read -r cases bytes rings < <(sed -nE 's/^python: ([0-9]+) cases.*/\1/p; s/^python: ([0-9]+) bytes by ([0-9]+) rings.*/\1 \2/p' "$work/output" | xargs)
[ "$cases" -gt 500 ] || fail "only $cases cases have run"
[ "$bytes" -gt 1000000 ] || fail "only $bytes bytes went by the ring"
[ "$rings" -gt 100 ] || fail "only $rings connections had a ring"
