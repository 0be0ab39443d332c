#!/bin/bash
# ctest: PLAIN
# The agent dies while malloc() fails in a program.  The program must continue, and get the events later.
. "$(dirname "$0")/lib.sh"

mkfifo "$work/in"
start run -- "$VB_PREFIX/tests/programs/no_memory" <"$work/in" >"$work/out" 2>"$work/err" &
program=$!
exec {to}>"$work/in"
until_true 20 grep -q ready "$work/out" || fail "not ready: $(cat "$work/err")"
kill -9 "$(verbena agent status | sed -n 's/.*\bpid \([0-9]*\),.*/\1/p' | head -1)"
send_newline "$to"
exec {to}>&-
wait $program || fail "exit code $?: $(cat "$work/err")"
