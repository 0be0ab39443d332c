#!/bin/bash
# Tests the RDMA CM by programs on two hosts: many connections at once (cmtime), ids that move to another event channel
# while their events arrive (ucmatose -m), addresses by GID and service id (AF_IB), vendor options (ece.c), requests
# whose peers end before they are accepted (lost_request.c), and events that programs write (own_events.c).
#   VB_CONNECTIONS    connections of cmtime (default 1000)
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need cmtime ucmatose tshark python3
connections=${VB_CONNECTIONS:-1000}

listens() { on "$1" verbena ps | grep -q "listening.*:$2\b"; }
# has_few_ids HOST COUNT: succeeds if the programs of the host have at most COUNT ids.
has_few_ids() { [ "$(on "$1" verbena ps | grep -c ' id ')" -le "$2" ]; }

make_hosts 1500
start_on b verbena run -- cmtime -b "$(address_of b 4)" >"$work/server" 2>&1 &
server=$!
until_true 20 listens b 7471 || fail "cmtime: $(cat "$work/server")"
for _ in 1 2; do
  on a verbena run -- timeout 100 cmtime -s "$(address_of b 4)" -c "$connections" >"$work/client" 2>&1 ||
    fail "cmtime -c $connections: exit $?: $(tail -5 "$work/client")"
  for step in 'create id' 'resolve addr' 'resolve route' 'create qp' connect disconnect destroy; do
    grep -qE "^$step *: +[0-9.]+ +[0-9.]+ +[0-9.]+ +[0-9.]+$" "$work/client" || fail "cmtime: $(cat "$work/client")"
  done
  ! grep -qi 'fail\|error\|event:' "$work/client" || fail "cmtime: $(cat "$work/client")"
  until_true 30 has_few_ids b 1 || fail "ids are left: $(on b verbena ps | tail -5)"
done
kill $server
wait $server 2>/dev/null || true
echo "cmtime -c $connections, twice: ok"
cat "$work/client"

for family in 4 6; do
  start_on b verbena run -- timeout 60 ucmatose -m -c 20 -C 20 -b "$(address_of b $family)" >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens b 7471 || fail "ucmatose: $(cat "$work/server")"
  on a verbena run -- timeout 60 ucmatose -m -c 20 -C 20 -s "$(address_of b $family)" >"$work/client" 2>&1 ||
    fail "ucmatose -m: exit $?: $(tail -5 "$work/client"); server: $(tail -5 "$work/server")"
  wait $server || fail "ucmatose -m: the server: exit $?: $(tail -5 "$work/server")"
  for side in client server; do
    grep -q 'return status 0' "$work/$side" && grep -qi 'migrat' "$work/$side" || fail "ucmatose -m: $side: $(cat "$work/$side")"
  done
  echo "IPv$family: ucmatose -m: ok"
done

for gid in ::ffff:10.77.0.2 fd77::2; do
  start_on b verbena run -- timeout 60 ucmatose -f gid -c 3 -C 5 -b $gid >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens b 7471 || fail "ucmatose -f gid: $(cat "$work/server")"
  on a verbena run -- timeout 60 ucmatose -f gid -c 3 -C 5 -s $gid >"$work/client" 2>&1 ||
    fail "ucmatose -f gid $gid: exit $?: $(tail -5 "$work/client"); server: $(tail -5 "$work/server")"
  wait $server || fail "ucmatose -f gid $gid: the server: exit $?: $(tail -5 "$work/server")"
  for side in client server; do
    grep -q 'return status 0' "$work/$side" || fail "ucmatose -f gid: $side: $(cat "$work/$side")"
  done
  echo "ucmatose -f gid, $gid: ok"
done

start_on b verbena run -- timeout 30 "$VB_PREFIX/tests/programs/ece" answer "$(address_of b 4)" 7500 >"$work/server" 2>&1 &
server=$!
until_true 20 listens b 7500 || fail "ece: $(cat "$work/server")"
on a verbena run -- timeout 30 "$VB_PREFIX/tests/programs/ece" ask "$(address_of b 4)" 7500 >"$work/client" 2>&1 ||
  fail "ece: exit $?: $(cat "$work/client"); server: $(cat "$work/server")"
wait $server || fail "ece: the server: exit $?: $(cat "$work/server")"
echo "ece: ok"

on a verbena run -- timeout 30 "$VB_PREFIX/tests/programs/lost_request" "$(address_of a 4)" 7501 >"$work/out" 2>&1 ||
  fail "lost_request: exit $?: $(cat "$work/out")"
echo "lost_request: ok"

on a verbena run -- timeout 30 "$VB_PREFIX/tests/programs/own_events" "$(address_of a 4)" 7502 >"$work/out" 2>&1 ||
  fail "own_events: exit $?: $(cat "$work/out")"
echo "own_events: ok"
check_captures
