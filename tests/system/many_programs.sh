#!/bin/bash
# `verbena ps` must show the QP and the range of QP numbers of each of 50 programs.
. "$(dirname "$0")/lib.sh"
need ibv_rc_pingpong python3

programs=50
pids=()
for i in $(seq $programs); do
  start run -- ibv_rc_pingpong -g 0 -p $((20000 + i)) >"$work/$i" 2>&1 &
  pids+=($!)
done
all_are_shown() { verbena ps --json | python3 -c '
import json, sys
wanted = {int(pid) for pid in sys.argv[1:]}
with_qp = [p["pid"] for p in json.load(sys.stdin)["processes"] if p["qps"] and p["ranges"]]
sys.exit(sorted(with_qp) != sorted(wanted))' "${pids[@]}"; }
until_true 200 all_are_shown || fail "a QP is missing, or is shown twice: $(verbena ps) $(cat "$work"/[0-9]*)"
[ "$(verbena ps --counters --json | grep -c '"packets_in"')" -eq $programs ] || fail "counters are missing"
kill "${pids[@]}"
