#!/bin/bash
# ctest: PLAIN
# A QP that a program attaches with ibv_attach_mcast() must get the packets of the group, although the RDMA CM joins no
# group.  perftest joins the group at the SA by MADs, and its server and client run on two nodes of a subnet.
# The test is PLAIN because `fabric up` starts OpenSM without the sanitizer's runtime.
source "$VB_SOURCE/tests/system/lib.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm ib_send_bw saquery ss

verbena fabric make --hosts 3 --infiniband >"$work/net"
verbena fabric up "$work/net" --name attach >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
port=18650
listens_tcp() { ss -ltnH "sport = :$port" | grep -q .; }

# The client sends slowly, because lost datagrams are not repeated, and the server waits for all of them.
pair=(timeout 60 ib_send_bw -c UD -g -F -p $port -n 100 -s 256 -t 1 -r 200)
start run --node host2 -- "${pair[@]}" >"$work/server" 2>&1 &
server=$!
until_true 20 listens_tcp || fail "no server: $(cat "$work/server")"
verbena run --node host3 -- "${pair[@]}" 127.0.0.1 >"$work/client" 2>&1 || fail "the client: $(tail -5 "$work/client")"
wait $server || fail "the server: $(tail -5 "$work/server")"
verbena fabric show attach >"$work/show"
copies=$(awk '$1 == "to_groups" { print $2 }' "$work/show")
[ "${copies:-0}" -ge 100 ] || fail "only ${copies:-0} copies of packets to groups: $(cat "$work/show")"
verbena fabric down attach >/dev/null
