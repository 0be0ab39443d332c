#!/bin/bash
# ctest: TIMEOUT 120 PLAIN
# Programs that most machines have must give the same exit codes, output and files by TCP and under
# `verbena run --sockets`.  scripts/suites runs many more programs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need curl python3 openssl
python3 "$VB_SOURCE/tests/suites/programs_suite.py" --quick "$work" >"$work/output" 2>&1 || fail "$(cat "$work/output")"
cat "$work/output"
# Python and curl are installed, so at least these two programs have run.  Each of them must have 10 or 11 rings.
for name in curl_python_http python_asyncio; do
  grep -Eq "^$name: same; .*only: [0-9,]+ bytes by 1[01] rings" "$work/output" || fail "$name does not have the expected number of rings"
done
