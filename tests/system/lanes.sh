#!/bin/bash
# Tests lanes, by which programs of one host exchange packets through shared memory.  Requests must wait for a peer that
# is stopped for a while.  They must fail if the peer dies.  If either side has --link udp, packets must go by UDP.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset VERBENA_LINK
need rping ib_atomic_bw ib_send_lat ibv_ud_pingpong ibv_uc_pingpong tshark

# counter PID NAME: prints a counter of a program.
counter() { verbena ps --counters --json | python3 -c '
import json, sys
print(*(p["counters"].get(sys.argv[2], 0) for p in json.load(sys.stdin)["processes"] if p["pid"] == int(sys.argv[1])))' \
  "$1" "$2"; }
# counter_exceeds PID NAME VALUE: succeeds if the counter of the program is larger than VALUE.
counter_exceeds() { [ "$(counter "$1" "$2")" -gt "$3" ] 2>/dev/null; }

# serve OPTIONS... -- PROGRAM...: starts a server, and sets $server to its pid.
serve() {
  start run "$@" >"$work/server" 2>&1 &
  server=$!
}
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }
# wait_tcp_listener PORT: waits until a program listens on the TCP port.  perftest exchanges parameters by TCP.
wait_tcp_listener() { until_true 60 listens_tcp "$1" || fail "nothing listens on TCP port $1: $(cat "$work/server")"; }

# ---- both programs use a lane; the requests are atomics, because these always go as packets, not by direct access
serve -- ib_atomic_bw -x 0 -p 20001 -D 60 --run_infinitely
wait_tcp_listener 20001
start run -- ib_atomic_bw -x 0 -p 20001 -D 60 --run_infinitely 127.0.0.1 >"$work/client" 2>&1 &
client=$!
until_true 20 counter_exceeds $server lane_packets_in 10000 || fail "no packets by a lane: $(verbena ps --counters)"
[ "$(counter $server lanes)" -eq 1 ] || fail "the server has $(counter $server lanes) lanes"
[ "$(counter $client retransmissions)" -lt 5000 ] || fail "$(counter $client retransmissions) retransmissions"

# ---- requests wait for a stopped peer, for longer than all retries would take
stop_process $server
before=$(counter $client packets_out)
sleep 6
after=$(counter $client packets_out)
[ $((after - before)) -lt 100000 ] || fail "the client went on sending to a stopped server"
gone $client && fail "the client did not wait for a stopped server: $(cat "$work/client")"
before=$(counter $server lane_packets_in)
kill -CONT $server
until_true 20 counter_exceeds $server lane_packets_in $((before + 10000)) || fail "no packets after the server was continued"

# ---- the death of the peer ends the client's requests
kill -KILL $server
until_true 30 gone $client || fail "the client does not notice that the server is dead"
wait $client && fail "the client does not report that the server is dead" || true
grep -qi 'error\|fail' "$work/client" || fail "the client prints: $(cat "$work/client")"
wait $server 2>/dev/null || true

# ---- UC, UD and RC use lanes
for program in ibv_uc_pingpong ibv_ud_pingpong ibv_rc_pingpong; do
  serve -- timeout 60 $program -g 0 -p 20002 -s 1000 -n 2000
  wait_tcp_listener 20002
  verbena run -- timeout 60 $program -g 0 -p 20002 -s 1000 -n 2000 127.0.0.1 >"$work/client" 2>&1 ||
    fail "$program: $(cat "$work/client")"
  wait $server || fail "$program's server: $(cat "$work/server")"
done

# ---- either side may refuse lanes
for pair in "udp lane" "lane udp"; do
  read -r server_link client_link <<<"$pair"
  serve --link $server_link -- ib_send_bw -x 0 -p 20003 -D 60 --run_infinitely
  wait_tcp_listener 20003
  start run --link $client_link -- ib_send_bw -x 0 -p 20003 -D 60 --run_infinitely 127.0.0.1 >"$work/client" 2>&1 &
  client=$!
  until_true 20 counter_exceeds $server packets_in 10000 || fail "$pair: no packets: $(cat "$work/client")"
  [ "$(counter $server lanes) $(counter $client lanes)" = "0 0" ] || fail "$pair: there is a lane"
  kill $client $server
  wait $client $server 2>/dev/null || true
done
! VERBENA_LINK=tcp verbena run -- ibv_rc_pingpong >"$work/output" 2>&1 || fail "run accepts --link tcp"
grep -q "VERBENA_LINK is 'tcp'; the valid values are lane and udp" "$work/output" || fail "an unknown link: $(cat "$work/output")"

# ---- in a receiver's capture, packets must have a correct ICRC, also packets of a lane, which are sent without an ICRC
for link in lane udp; do
  sends=(timeout 60 ib_send_bw -F -x 0 -p 20004 -m 1024 -s 3000 -n 1000)
  serve --link $link --pcap "$work/$link.pcapng" -- "${sends[@]}"
  wait_tcp_listener 20004
  verbena run --link $link -- "${sends[@]}" 127.0.0.1 >"$work/client" 2>&1 ||
    fail "with a capture by $link: $(cat "$work/client")"
  wait $server || fail "the captured server by $link: $(cat "$work/server")"
  first_packets=$(tshark -r "$work/$link.pcapng" --disable-protocol rpcordma 2>/dev/null | grep -c 'RC Send First')
  [ "$first_packets" -ge 1000 ] || fail "the capture by $link has $first_packets SEND_FIRST"
  tshark -r "$work/$link.pcapng" -F nsecpcap -w "$work/$link.pcap" 2>/dev/null
  python3 "$VB_SOURCE/tests/wire/check_capture.py" "$work/$link.pcap" 127.0.0.1 ::1 ||
    fail "the capture by $link has wrong ICRCs"
done

[ -z "$(ls -A /dev/shm 2>/dev/null)" ] || fail "files remain in /dev/shm: $(ls -A /dev/shm)"
