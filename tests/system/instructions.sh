#!/bin/bash
# ctest: TIMEOUT 240 PLAIN
# A SEND and a poll may need at most a tenth more instructions than the counts below.  Callgrind counts instructions, so
# the speed of the machine does not matter.  But on a busy machine timers expire during some calls, so the smallest of
# three counts is compared.  If a change needs more instructions for a good reason, or much less, write the new count
# here.
. "$(dirname "$0")/lib.sh"
need valgrind
unset VERBENA_LINK

# counted LINK WHAT: prints the instructions of one call.
counted() {
  verbena run --link "$1" -- valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*counted*' \
    "$VB_PREFIX/bench/instructions" "$2" 500 64 >"$work/said" 2>&1 || fail "$1 $2: exit $?: $(cat "$work/said")"
  sed -n 's/.*Collected : \([1-9][0-9]*\)$/\1/p' "$work/said" | sort -n | tail -1 | awk '{ print int($1 / 500) }'
}

while read -r link what known; do
  now=
  for _ in 1 2 3; do
    count=$(counted "$link" "$what")
    [ -n "$count" ] || fail "$link $what: callgrind did not count: $(cat "$work/said")"
    [ "${now:-$count}" -lt "$count" ] || now=$count
    [ $((now * 10)) -gt $((known * 11)) ] || break
  done
  echo "$link $what: $now instructions, were $known"
  [ $((now * 10)) -le $((known * 11)) ] || fail "$link $what: $now instructions, a tenth more than $known"
done <<'COUNTS'
lane send 2920
lane poll 990
lane full 385
udp send 3900
udp poll 875
udp full 385
COUNTS
