#!/bin/bash
# ctest: TIMEOUT 90
# `run --verbose` describes failures on standard error, with the peer, the step, the number of tries and the time.
. "$(dirname "$0")/lib.sh"
need rping ip

export VERBENA_LINK=udp  # lanes do not notice that the network is away
says() { grep -qE "$1" "$2" || fail "no '$1' in: $(cat "$2")"; }

# Connects to a port without a listener.
if verbena run --verbose -- timeout 20 rping -c -a 127.0.0.1 -C 1 >/dev/null 2>"$work/client"; then
  fail "connected to nobody"
fi
says '^verbena: rping\[[0-9]+\]: connect to 127\.0\.0\.1:7174 failed after [0-9.]+ m?s: rejected, invalid service id: nobody listens there \(REJ reason 8\)$' "$work/client"
[ "$(grep -c '^verbena: ' "$work/client")" -eq 1 ] || fail "not one line: $(cat "$work/client")"

# Connects to an address without a route.
if verbena run --verbose -- timeout 20 rping -c -a 203.0.113.77 -C 1 >/dev/null 2>"$work/client"; then
  fail "connected to 203.0.113.77"
fi
says '^verbena: rping\[[0-9]+\]: resolving 203\.0\.113\.77:7174 failed after ' "$work/client"

# Without the option there is no line.
verbena run -- timeout 20 rping -c -a 127.0.0.1 -C 1 >/dev/null 2>"$work/client" || true
if grep '^verbena: ' "$work/client"; then fail "a line is printed without --verbose"; fi

# If the network fails for good, a line says how many tries there were.
start run --verbose -- rping -s >/dev/null 2>"$work/server" &
server=$!
wait_listening 7174
start run --verbose -- rping -c -a 127.0.0.1 -C 100000000 >/dev/null 2>"$work/client" &
client=$!
two_qps_in_rts() { [ "$(verbena ps | grep -cE '[[:space:]]RC[[:space:]]+RTS[[:space:]]')" -eq 2 ]; }
until_true 20 two_qps_in_rts || fail "not connected: $(verbena ps)"
ip link set lo down
failed() { grep -qE '^verbena: rping\[[0-9]+\]: QP 0x[0-9a-f]{6} to 127\.0\.0\.1 \(QP 0x[0-9a-f]{6}\): (SEND|WRITE|READ) failed: retries exceeded, no answer to [0-9]+ tries in [0-9]+\.[0-9] s' \
  "$work/server" "$work/client"; }
until_true 30 failed || fail "nobody was told: $(cat "$work/server" "$work/client")"
kill $client $server 2>/dev/null || true
