#!/bin/bash
# ctest: PLAIN
# When `fabric up` returns, programs on all nodes of a subnet must be able to resolve addresses at once.  So each node
# must be a member of the broadcast group of IPoIB.  The test looks at once, and does not wait for anything.
# The test is PLAIN because `fabric up` starts OpenSM without the sanitizer's runtime.
source "$VB_SOURCE/tests/system/lib.sh"
need opensm rping

verbena fabric make --fat-tree 64 >"$work/net"
verbena fabric up "$work/net" --name ready >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
for node in host64 host32 host1; do
  is_member "$node" || fail "$node is not a member yet: $(verbena sa groups --node "$node")"
done
verbena fabric log ready | grep -q 'the subnet is up: all ports with a link are active, and addresses are resolved' ||
  fail "the log: $(verbena fabric log ready | head -20)"
for i in $(seq 64); do is_member "host$i" || fail "host$i is not a member yet"; done

verbena run --node host64 -- rping -s -C 1 >"$work/server" 2>&1 &
server=$!
listens() { VERBENA_FABRIC=ready VERBENA_NODE=host64 verbena ps | grep -q listening; }
until_true 20 listens || fail "no server: $(cat "$work/server")"
verbena run --node host1 -- rping -c -a 10.0.0.64 -C 1 -v >"$work/client" 2>&1 || fail "rping: $(cat "$work/client")"
wait $server || fail "the server: $(cat "$work/server")"
verbena fabric down ready >/dev/null
