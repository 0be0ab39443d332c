#!/bin/bash
# ctest: PLAIN FIXTURE python_suite
# Modules of Python's test suite must have the same results over TCP and under `verbena run --sockets`.  With
# VERBENA_SOCKETS_EARLY=50, the first call of each connection waits up to 50 ms until the connection uses shared memory
# (its ring) instead of TCP.  scripts/suites runs all modules, and the suites of Redis and node.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export PYTHONPATH=$VB_SOURCE/build/python-suite
[ -d "$PYTHONPATH" ] || skip "$PYTHONPATH does not exist: fetch_python.py could not make it"
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
