#!/bin/bash
# ctest: PLAIN
# A SEND, a poll of an empty completion queue, and a poll that returns a completion ("full") may need at most as many
# more instructions than the counts below as the last column says, in percent.  Callgrind counts instructions, so the
# speed of the machine does not matter.  But on a busy machine timers expire during some calls.  So a larger count is
# repeated, and the smallest of at most three counts is compared.  A poll that finds nothing also yields its processor,
# which needs more instructions if other programs use the processor.  A poll that sleeps for this reason is not counted.
# If a change needs more instructions for a good reason, or many fewer, write the new count here.  The test is PLAIN (not
# in preset asan), because Valgrind cannot run programs with AddressSanitizer.
. "$(dirname "$0")/lib.sh"
need valgrind
unset VERBENA_LINK

# count_instructions LINK WHAT: prints the number of instructions of one call.
count_instructions() {
  verbena run --link "$1" -- valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*counted*' \
    --toggle-collect='*sleep_until_packets*' \
    "$VB_PREFIX/bench/instructions" "$2" 500 64 >"$work/output" 2>&1 || fail "$1 $2: exit $?: $(cat "$work/output")"
  sed -n 's/.*Collected : \([1-9][0-9]*\)$/\1/p' "$work/output" | sort -n | tail -1 | awk '{ print int($1 / 500) }'
}

while read -r link what recorded percent; do
  smallest=
  limit=$((recorded * (100 + percent) / 100))
  for _ in 1 2 3; do
    count=$(count_instructions "$link" "$what")
    [ -n "$count" ] || fail "$link $what: callgrind did not count: $(cat "$work/output")"
    [ "${smallest:-$count}" -lt "$count" ] || smallest=$count
    [ "$smallest" -gt "$limit" ] || break
  done
  echo "$link $what: $smallest instructions, were $recorded"
  [ "$smallest" -le "$limit" ] || fail "$link $what: $smallest instructions, $percent % more than $recorded"
done <<'COUNTS'
lane send 2920 10
lane poll 990 30
lane full 385 10
udp send 3900 10
udp poll 875 30
udp full 385 10
COUNTS
