#!/bin/bash
# ctest: PLAIN
# Programs on three hosts join and leave groups in random order, while OpenSM dies and another OpenSM takes over.  When
# all commands have ended, the SA must have exactly the union of the groups that the processes of each host have joined.
# VB_JOINS is the number of joins and leaves.  VB_SEED repeats an order.  The test is PLAIN, because _joins.py starts its
# programs without the sanitizer's runtime.
source "$VB_SOURCE/tests/system/lib.sh"
source "$VB_SOURCE/tests/system/lib_managers.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm saquery sminfo ibstat ibv_devinfo python3

joins=${VB_JOINS:-200}
fifth=$((joins / 5))
seed=${VB_SEED:-$((RANDOM * 32768 + RANDOM))}
echo "VB_SEED=$seed VB_JOINS=$joins"

export VERBENA_FABRIC=joins
verbena fabric make --fat-tree 4 >"$work/net"
verbena fabric up "$work/net" --name joins --sm none >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
begin_manager host1 5
wait_active host1 host2 host3 host4
begin_manager host2 3

coproc python3 "$VB_SOURCE/tests/system/_joins.py" "$seed" "$groups" \
  host2=10.0.0.2 host2=10.0.0.2 host3=10.0.0.3 host3=10.0.0.3 host3=10.0.0.3 host4=10.0.0.4 host4=10.0.0.4 host4=10.0.0.4 \
  2>"$work/errors"
exec {from}<&"${COPROC[0]}" {to}>&"${COPROC[1]}"
driver=$COPROC_PID
send_to_driver() { (echo "$@" >&"$to") 2>/dev/null || fail "seed $seed: $(cat "$work/errors")"; }
# expect WORD: reads the driver's next line into $reply.  The line must begin with the word.
expect() {
  read -r -t 90 reply <&"$from" || fail "seed $seed: no '$1': $(cat "$work/errors")"
  [ "${reply%% *}" = "$1" ] || fail "seed $seed: '$reply' instead of '$1'"
}

# Succeeds if the SA has the memberships of $work/wanted.
sa_agrees() {
  members host3 | awk '$1 ~ /^ff12:4001:/ { print $1, $3, $4 }' >"$work/at_sa"
  cmp -s "$work/wanted" "$work/at_sa"
}
# compare WHEN LOG: waits until all commands have ended, and compares the SA with the groups of the processes.  A
# program may lose a membership only if a new manager has created the group again, which the manager's log shows.
compare() {
  local line
  send_to_driver settle
  expect settled
  while read -r -t 90 line <&"$from" && [ "$line" != . ]; do echo "$line"; done >"$work/wanted"
  until_true 30 sa_agrees || fail "seed $seed, $1: the SA has other memberships: $(diff "$work/wanted" "$work/at_sa")"
  send_to_driver unexplained "$2"
  while read -r -t 90 line <&"$from" && [ "$line" != . ]; do echo "$line"; done >"$work/unexplained"
  [ ! -s "$work/unexplained" ] || fail "seed $seed, $1: memberships were lost without a reason: $(cat "$work/unexplained")"
  echo "$1: $(wc -l <"$work/wanted") memberships of hosts, ${reply#settled } lost by programs"
}

expect ready
send_to_driver run "$fifth"
expect ran
compare "under the first manager" /dev/null

# The master dies while joins and leaves are under way.  More joins and leaves begin while there is no manager.
send_to_driver run "$fifth"
end_manager host1
send_to_driver run "$fifth"
expect ran
expect ran
wait_master host3 host2
compare "after the takeover" "$work/host2.osm/log"

# A manager of higher priority starts, and takes over the subnet while joins and leaves are under way.
begin_manager host1 5
send_to_driver run "$fifth"
expect ran
wait_master host3 host1
compare "after the handover" "$work/host1.osm/log"

send_to_driver run $((joins - 4 * fifth))
expect ran
compare "at the end" /dev/null
send_to_driver end
wait "$driver" || fail "seed $seed: $(cat "$work/errors")"
no_members_remain() { members host3 >"$work/left" && ! grep -q '^ff12:4001:\|^saquery fails' "$work/left"; }
until_true 30 no_members_remain || fail "seed $seed: the SA has members whose programs have ended: $(members host3)"
verbena fabric down joins >"$work/down" || fail "the fabric does not go down"
