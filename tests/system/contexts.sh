#!/bin/bash
# Each context that ibv_open_device() returns has its own descriptor and events, also in a forked child.
. "$(dirname "$0")/lib.sh"
need ip

start run -- "$VB_PREFIX/tests/programs/contexts" >"$work/out" 2>"$work/err" &
program=$!
has_printed() { grep -q "^$1$" "$work/out" || ! kill -0 $program 2>/dev/null; }
until_true 20 has_printed "await GID" || fail "the program is not ready: $(cat "$work/err")"
ip addr add 10.99.0.1/32 dev lo
until_true 20 has_printed "await death" || fail "no event of the port: $(cat "$work/err")"
agent=$(verbena agent status | sed -n 's/.*\bpid \([0-9]*\),.*/\1/p' | head -1)
[ -z "$agent" ] || kill -9 "$agent"
wait $program || fail "$(cat "$work/err")"
grep -q '^ok$' "$work/out" || fail "$(cat "$work/out" "$work/err")"
