#!/bin/bash
# ctest: PLAIN
# Two programs exchange messages over a lane, and block until each message comes.  A message must wake the blocked
# thread about once, and other threads only seldom.  The test compares counters of wake-ups, not times.
#   VB_WAKES_LINKS    the links to test (default lane).  With udp the test fails while other programs need
#                     all processors: a thread that waits long for a processor loses the receiver role for up to a
#                     second.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need ib_send_lat ss python3

# counts PID: prints four numbers: the messages that a program has received, the wake-ups that it has sent to other
# programs, the wake-ups of its thread that waits for packets, and the wake-ups of its progress thread.
counts() { verbena ps --counters --json | python3 -c '
import json, sys
names = ["receives", "wakes_sent", "wakes_of_receiver", "wakes_of_progress_thread"]
for process in json.load(sys.stdin)["processes"]:
    if process["pid"] == int(sys.argv[1]):
        print(*(process["counters"].get(name, 0) for name in names))' "$1"; }
has_received() { local now; now=($(counts "$1")); [ "${now[0]:-0}" -ge "$2" ] 2>/dev/null; }

# one_wake_for_each: succeeds if 5,000 messages cause about as many wake-ups, and only of the blocked thread.  There may
# be more wake-ups, because this thread also waits for its own sends.  There may be fewer, because a message often comes
# before the thread sleeps.
one_wake_for_each() {
  local before=($(counts $server)) added=()
  until_true 60 has_received $server $((before[0] + 5000)) || fail "the messages over $link have stopped: $(counts $server)"
  after=($(counts $server))
  for i in 0 1 2 3; do added[i]=$((after[i] - before[i])); done
  echo "$link: ${added[0]} messages, ${added[1]} wake-ups sent, ${added[2]} of the blocked thread, ${added[3]} of the other"
  [ "${added[1]}" -le $((added[0] * 5 / 4)) ] && [ "${added[2]}" -le $((added[0] * 5 / 4)) ] && [ "${added[2]}" -gt 0 ] &&
    [ "${added[3]}" -le $((added[0] / 10)) ]
}

listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }

port=20100
for link in ${VB_WAKES_LINKS:-lane}; do
  port=$((port + 1))
  start run --link $link -- ib_send_lat -x 0 -e -n 10000000 -p $port >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp $port || fail "no server: $(cat "$work/server")"
  start run --link $link -- ib_send_lat -x 0 -e -n 10000000 -p $port 127.0.0.1 >"$work/client" 2>&1 &
  client=$!
  until_true 20 has_received $server 1000 || fail "no messages over $link: $(tail -n 3 "$work/server" "$work/client")"
  # A thread that waits long for a processor loses the receiver role for a while, so the test measures up to 20 times.
  for attempt in {1..20}; do
    one_wake_for_each && break
    [ "$attempt" -lt 20 ] || fail "$link: more than one wake-up for a message, or for the wrong thread"
  done
  [ $link = lane ] || [ "${after[1]}" -eq 0 ] || fail "wake-ups are counted although there is no lane"
  kill $client $server
  wait $client $server || true
done
