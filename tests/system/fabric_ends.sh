#!/bin/bash
# Starts and ends many fabrics, several at once, by command and by SIGKILL.  No process, socket or file of them may
# remain.  VB_ROUNDS sets the number of rounds.
. "$(dirname "$0")/lib.sh"
unset VERBENA_LINK  # it may be udp, but a virtual host has no UDP
need ibv_devinfo python3 ss

rounds=${VB_ROUNDS:-10}
verbena fabric make --hosts 3 --rails 2 >"$work/lab.toml"
pid_of() { verbena fabric show "$1" --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["fabric"]["pid"])'; }

is_down() { ! verbena fabric ls | grep -q "^$1 "; }

# run_rounds NAME: starts and ends a fabric in each round, and kills it in every third round.
run_rounds() {
  local round pid
  for round in $(seq "$rounds"); do
    verbena fabric up "$work/lab.toml" --name "$1" >/dev/null || return 1
    verbena run --fabric "$1" --node a -- ibv_devinfo >/dev/null || return 1
    if [ $((round % 3)) -eq 0 ]; then
      pid=$(pid_of "$1") || return 1
      kill -9 "$pid"
      until_true 10 is_down "$1" || return 1
    else
      verbena fabric down "$1" >/dev/null || return 1
    fi
  done
}
jobs=()
for name in one two three; do
  run_rounds $name 2>"$work/err.$name" &
  jobs+=($!)
done
for job in "${jobs[@]}"; do
  wait "$job" || fail "a fabric: $(cat "$work"/err.*)"
done
verbena fabric ls | grep -q 'no fabric is up' || fail "a fabric is left: $(verbena fabric ls)"
check_nothing_left
echo "$((3 * rounds)) fabrics: nothing is left"

# If two fabrics of the same name start at once, one must come up, and the other one must report why it does not.
for round in $(seq 5); do
  verbena fabric up "$work/lab.toml" --name same >"$work/first" 2>&1 &
  first=$!
  successes=0
  verbena fabric up "$work/lab.toml" --name same >"$work/second" 2>&1 && successes=$((successes + 1))
  wait $first && successes=$((successes + 1))
  [ $successes -eq 1 ] || fail "round $round: $successes of two came up: $(cat "$work/first" "$work/second")"
  grep -q 'up already' "$work/first" "$work/second" || fail "the second fabric reports: $(cat "$work/first" "$work/second")"
  verbena fabric down same >/dev/null
done
check_nothing_left
echo "two fabrics of one name: ok"
