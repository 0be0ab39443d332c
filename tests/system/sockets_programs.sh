#!/bin/bash
# ctest: PLAIN
# Programs that most machines have must give the same exit codes, output and files by TCP and under
# `verbena run --sockets`.  scripts/suites runs many more programs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need curl python3 openssl
python3 "$VB_SOURCE/tests/suites/programs_suite.py" --quick "$work" >"$work/output" 2>&1 || fail "$(cat "$work/output")"
cat "$work/output"
# Python and curl are installed, so at least these two programs have run.  curl_python_http makes 11 connections, and
# python_asyncio makes 10.  Each connection must have a ring.
check_rings() {
  grep -Eq "^$1: same; .*only: [0-9,]+ bytes by $2 rings" "$work/output" || fail "$1 does not have $2 rings"
}
check_rings curl_python_http 11
check_rings python_asyncio 10
