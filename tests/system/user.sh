#!/bin/bash
# Programs must work for an ordinary user who is not root and has no capabilities.
. "$(dirname "$0")/lib.sh"
need rping unshare

chmod 755 "$work"
if [ "${1:-}" != inside ]; then
  # Run the rest of the test in a user namespace, as uid 1000 and without capabilities.
  unshare --user --map-user=1000 --map-group=1000 true 2>/dev/null ||
    skip "user namespaces are not allowed here"
  unshare --user --map-user=1000 --map-group=1000 -- "$0" inside
  exit
fi

[ "$(id -u)" -eq 1000 ] || fail "not an ordinary user"
grep -q '^CapEff:[[:space:]]*0*$' <(LD_PRELOAD= cat /proc/self/status) || fail "the user has capabilities"
start run -- rping -s -C 100 -S 4096 -V >"$work/server" 2>&1 &
server=$!
wait_listening 7174
verbena run -- timeout 60 rping -c -a 127.0.0.1 -v -V -C 100 -S 4096 >"$work/client" 2>"$work/client.err" ||
  fail "client: $(cat "$work/client.err")"
wait $server || fail "server: $(tail -3 "$work/server")"
[ "$(grep -ac 'ping data' "$work/client")" -eq 100 ] || fail "not 100 rounds"
