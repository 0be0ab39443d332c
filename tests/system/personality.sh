#!/bin/bash
# Programs must work with each `verbena run --personality`.  With rxe, 20 ms or more must pass between an error and the
# flush of requests.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need rping ucmatose ibv_rc_pingpong
programs=$VB_PREFIX/tests/programs

for personality in connectx rxe; do
  start run --personality $personality -- timeout 60 rping -s -C 50 -S 5000 -V >"$work/server" 2>&1 &
  server=$!
  wait_listening 7174
  verbena run --personality $personality -- timeout 60 rping -c -a 127.0.0.1 -C 50 -S 5000 -V >"$work/client" 2>&1 ||
    fail "$personality: rping: $(tail -3 "$work/client")"
  wait $server || fail "$personality: rping's server: $(tail -3 "$work/server")"

  start run --personality $personality -- timeout 60 ucmatose -c 10 >"$work/server" 2>&1 &
  server=$!
  wait_listening 7471
  verbena run --personality $personality -- timeout 60 ucmatose -c 10 -s 127.0.0.1 >"$work/client" 2>&1 ||
    fail "$personality: ucmatose: $(tail -3 "$work/client")"
  wait $server || fail "$personality: ucmatose's server: $(tail -3 "$work/server")"

  # This program prints the time between an error and the flush of a request.
  verbena run --personality $personality -- timeout 60 "$programs/adapter_behaviour" >"$work/behaviour" 2>&1 ||
    fail "$personality: adapter_behaviour: $(cat "$work/behaviour")"
  flushed=$(sed -n 's/^flushed after \([0-9]*\) ms$/\1/p' "$work/behaviour")
  [ -n "$flushed" ] || fail "adapter_behaviour prints: $(cat "$work/behaviour")"
  [ $personality = connectx ] || [ "$flushed" -ge 20 ] || fail "rxe flushes after $flushed ms"
  grep -qx 'posted and polled 64, in order' "$work/behaviour" || fail "adapter_behaviour prints: $(cat "$work/behaviour")"
  echo "$personality: programs work; flushed after $flushed ms"
done

! verbena run --personality siw -- true 2>"$work/output" || fail "run accepts the personality siw"
grep -q 'connectx' "$work/output" || fail "an unknown personality: $(cat "$work/output")"
! VERBENA_PERSONALITY=siw verbena run -- ibv_rc_pingpong >"$work/output" 2>&1 || fail "run accepts the personality siw"
grep -q "VERBENA_PERSONALITY is 'siw'; the valid values are connectx and rxe" "$work/output" ||
  fail "an unknown personality in the environment: $(cat "$work/output")"
