#!/bin/bash
# For an unknown program, option or command, `verbena` must print one line that says what is wrong.  Also tests unknown
# addresses and the exit codes of `run`.
. "$(dirname "$0")/lib.sh"
need rping

expect() {  # expect EXIT-CODE PATTERN ARGUMENT...
  local code=$1 pattern=$2 got=0
  shift 2
  verbena "$@" >"$work/out" 2>"$work/err" || got=$?
  [ $got -eq "$code" ] || fail "verbena $*: exit $got, not $code: $(cat "$work/err")"
  grep -qE -- "$pattern" "$work/err" || fail "verbena $*: no '$pattern' in: $(cat "$work/err")"
  [ "$(wc -l <"$work/err")" -eq 1 ] || fail "verbena $*: not one line: $(cat "$work/err")"
}

expect 127 'no-such-program' run -- no-such-program
expect 126 'README' run -- "$VB_SOURCE/README.md"
expect 125 'no program' run
expect 125 '--nonsense' run --nonsense -- true
expect 125 'no-such-dir' run --pcap /no-such-dir/x -- true
expect 2 'nonsense' nonsense
expect 2 'nonsense' agent nonsense

# Tests addresses that do not exist.
if verbena run -- timeout 20 rping -c -a 203.0.113.77 -C 1 >"$work/out" 2>&1; then fail "connected to 203.0.113.77"; fi
grep -qE 'RDMA_CM_EVENT_(ADDR_ERROR|UNREACHABLE)|rdma_resolve_addr' "$work/out" ||
  fail "no address error: $(cat "$work/out")"
if verbena run -- timeout 20 rping -s -a 203.0.113.77 >"$work/out" 2>&1; then fail "bound 203.0.113.77"; fi
grep -q 'rdma_bind_addr: Cannot assign requested address' "$work/out" || fail "bind: $(cat "$work/out")"

# `run` ends with the program's exit code, or with a code for the signal that has ended the program.
code=0
verbena run -- bash -c 'exit 42' || code=$?
[ $code -eq 42 ] || fail "exit code $code, not 42"
code=0
verbena run -- bash -c 'kill -TERM $$' || code=$?
[ $code -eq 143 ] || fail "exit code $code after SIGTERM, not 143"
