#!/bin/bash
# ctest: TIMEOUT 900 PLAIN
# OpenSM configures random irregular fat trees.  Hosts join groups while packets are sent to them, so OpenSM moves the
# groups from one tree of cables to another.  Meanwhile no member may get a packet twice, and no packet may be lost
# because there are too many copies.  Then hosts must find each other by broadcasts, and SMAs must answer.
#   VB_TREES    number of trees (default 12)
#   VB_SEED     only the tree of this seed
# The test is PLAIN because verbena-fabric starts OpenSM without the sanitizer's runtime.
source "$VB_SOURCE/tests/system/lib.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm saquery smpquery ibstat rping python3
export VERBENA_FABRIC=tree TMPDIR=$work

on() { verbena run --node "$1" -- "${@:2}"; }
lid() { on "$1" ibstat | sed -n 's/.*Base lid: //p'; }
# total COUNTER: prints a counter of the fabric.
total() { verbena fabric show --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["fabric"]["counters"][sys.argv[1]])' "$1"; }
# all_are_members: succeeds if OpenSM has added each host to the broadcast group.
all_are_members() {
  on host1 saquery --smkey 1 -m >"$work/saquery" 2>&1 || return 1
  [ "$(awk -F '[.][.]+' '/MGID/ { mgid = $2 } /NodeDescription/ && mgid == "ff12:401b:ffff::ffff:ffff"' "$work/saquery" |
    wc -l)" -eq "$hosts" ]
}
# finds HOST NUMBER: succeeds if the host finds the address of another host, which refuses the connection because no
# server listens there.
finds() {
  on "$1" timeout 20 rping -c -a "10.0.0.$2" -p 7 -C 1 >"$work/rping" 2>&1 || true
  grep -q RDMA_CM_EVENT_REJECTED "$work/rping"
}

# try_tree SEED: brings up a tree and tests it.
try_tree() {
  local hosts from to counter value
  python3 "$VB_SOURCE/tests/system/_trees.py" "$1" >"$work/tree.net"
  hosts=$(grep -c '^Hca' "$work/tree.net")
  verbena fabric up "$work/tree.net" --name tree >"$work/up" 2>&1 || fail "seed $1: the tree does not come up: $(cat "$work/up")"
  until_true 30 all_are_members || fail "seed $1: hosts are not in the broadcast group: $(tail -20 "$work/saquery")"
  python3 "$VB_SOURCE/tests/system/_tree_members.py" "$1" "$VB_PREFIX/bin/verbena" "$VB_PREFIX/tests/programs/groups" \
    $hosts >"$work/messages" 2>"$work/errors" || fail "seed $1: $(cat "$work/errors")"
  messages=$((messages + $(cat "$work/messages")))
  RANDOM=$1
  for _ in 1 2 3; do
    from=$((RANDOM % hosts + 1)) to=$((RANDOM % hosts + 1))
    until_true 10 finds "host$from" $to || fail "seed $1: host$from does not find host$to: $(cat "$work/rping")"
  done
  on "host$from" smpquery -t 1000 nodeinfo "$(lid "host$to")" >"$work/smpquery" 2>&1 ||
    fail "seed $1: an SMP from host$from to host$to gets no answer: $(cat "$work/smpquery")"
  for counter in subnet_too_many_hops subnet_not_taken dropped_nodes_full; do
    value=$(total $counter) || fail "no counter $counter: $(verbena fabric show)"
    [ "$value" -eq 0 ] || fail "seed $1: $counter is $value: $(verbena fabric show | grep -E 'subnet_|nodes_full')"
  done
  looped=$((looped + $(total subnet_looped_copies)))
  verbena fabric down tree >/dev/null || fail "seed $1: the tree does not go down"
}

looped=0 messages=0
if [ -n "${VB_SEED:-}" ]; then
  try_tree "$VB_SEED"
else
  for seed in $(seq 1 "${VB_TREES:-12}"); do try_tree "$seed"; done
fi
echo "$messages messages to groups; $looped copies would have entered a switch again"
