#!/bin/bash
# `run --verbose` describes failures on standard error, with the peer, the step, the number of tries and the time.
. "$(dirname "$0")/lib.sh"
need rping ip

export VERBENA_LINK=udp  # lanes, the default, would work even without the network
# expect_line PATTERN FILE: fails the test unless a line of the file matches.
expect_line() { grep -qE "$1" "$2" || fail "no '$1' in: $(cat "$2")"; }

# Connects to a port without a listener.
if verbena run --verbose -- timeout 20 rping -c -a 127.0.0.1 -C 1 >/dev/null 2>"$work/client"; then
  fail "connected without a listener"
fi
expect_line '^verbena: rping\[[0-9]+\]: connect to 127\.0\.0\.1:7174 failed after [0-9.]+ m?s: rejected, invalid service id: no program listens on it \(REJ reason 8\)$' "$work/client"
[ "$(grep -c '^verbena: ' "$work/client")" -eq 1 ] || fail "not one line: $(cat "$work/client")"

# Connects to an address without a route.
if verbena run --verbose -- timeout 20 rping -c -a 203.0.113.77 -C 1 >/dev/null 2>"$work/client"; then
  fail "connected to 203.0.113.77"
fi
expect_line '^verbena: rping\[[0-9]+\]: resolving 203\.0\.113\.77:7174 failed after 0 ms: Network is unreachable' "$work/client"
expect_line '^rdma_resolve_addr: Network is unreachable' "$work/client"

# Without --verbose, no line may be printed.
verbena run -- timeout 20 rping -c -a 127.0.0.1 -C 1 >/dev/null 2>"$work/client" || true
if grep '^verbena: ' "$work/client"; then fail "a line is printed without --verbose"; fi

# If the network fails permanently, a line must name the number of tries.
start run --verbose -- rping -s >/dev/null 2>"$work/server" &
server=$!
wait_listening 7174
start run --verbose -- rping -c -a 127.0.0.1 -C 100000000 >/dev/null 2>"$work/client" &
client=$!
two_qps_in_rts() { [ "$(verbena ps | grep -cE '[[:space:]]RC[[:space:]]+RTS[[:space:]]')" -eq 2 ]; }
until_true 20 two_qps_in_rts || fail "not connected: $(verbena ps)"
ip link set lo down
failure_is_reported() { grep -qE '^verbena: rping\[[0-9]+\]: QP 0x[0-9a-f]{6} to 127\.0\.0\.1 \(QP 0x[0-9a-f]{6}\): (SEND|WRITE|READ) failed: retries exceeded, no answer to [0-9]+ tries in [0-9]+\.[0-9] s' \
  "$work/server" "$work/client"; }
until_true 30 failure_is_reported || fail "no program reports the failure: $(cat "$work/server" "$work/client")"
kill $client $server 2>/dev/null || true
