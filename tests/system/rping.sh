#!/bin/bash
# Debian's rping must connect, move data in both directions, verify the data and disconnect.
. "$(dirname "$0")/lib.sh"
need rping ip

ip addr add 10.99.0.1/24 dev lo
ip -6 addr add fd99::1/64 dev lo nodad 2>/dev/null || true

ping_pong() {  # ping_pong ADDRESS ROUNDS SIZE: runs a server and its client
  local address=$1 rounds=$2 size=$3 server
  start run -- rping -s -a "$address" -C "$rounds" -S "$size" -V >"$work/server" 2>&1 &
  server=$!
  wait_listening 7174
  verbena run -- timeout 60 rping -c -a "$address" -v -V -C "$rounds" -S "$size" >"$work/client" 2>"$work/client.err" ||
    fail "client to $address, $size bytes: exit $?: $(cat "$work/client.err")"
  wait $server || fail "server at $address, $size bytes: exit $?: $(tail -3 "$work/server")"
  [ "$(grep -ac 'ping data: rdma-ping-' "$work/client")" -eq "$rounds" ] ||
    fail "not $rounds rounds to $address: $(tail -3 "$work/client")"
  if grep -qiE 'mismatch|error|cq completion failed' "$work/client" "$work/client.err" "$work/server"; then
    fail "$address, $size bytes: $(grep -hiE 'mismatch|error|failed' "$work/client" "$work/client.err" "$work/server")"
  fi
  echo "$address, $rounds rounds of $size bytes: ok"
}

ping_pong 127.0.0.1 1000 64
ping_pong 127.0.0.1 200 65535
ping_pong 10.99.0.1 100 100
if ip -6 addr show dev lo | grep -q '::1/128'; then
  ping_pong ::1 1000 64
  ping_pong ::1 50 65535
fi
if ip -6 addr show dev lo | grep -q 'fd99::1'; then
  ping_pong fd99::1 100 5000
fi
