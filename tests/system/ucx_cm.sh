#!/bin/bash
# ctest: PLAIN
# Runs unmodified UCX over the RDMA CM between two hosts, with UCX's own example: one server for several clients.  The
# example uses reliable connections and datagrams.  It sends eager messages, or the receiver fetches the data
# (rendezvous).  The test uses only tagged messages.  With streams and active messages, the client closes its end by
# force after it has sent everything.  Then a slow server gets the disconnect before it has read the data, and hangs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need gcc tshark
unshare --mount true 2>/dev/null || skip "no mount namespaces here"
examples=/usr/share/doc/libucx-dev/examples
[ -r $examples/ucp_client_server.c ] || skip "the example of UCX (libucx-dev) is not installed"
gcc -O1 -I$examples -o "$work/ucx" $examples/ucp_client_server.c -lucp -lucs

# end_of FILE: prints the end of a program's output, or the beginning of the sanitizer's report in this output.
end_of() { grep -a -A25 'ERROR: AddressSanitizer' "$1" || tail -5 "$1"; }
listens() { on b verbena ps 2>/dev/null | grep -q 'listening.*:13444'; }
listener_is_closed() { ! listens; }
make_hosts 1500
clients=0
# rc_v uses rc_verbs, and ud_verbs to set connections up.
for transport in rc_v ud_v; do
  for rendezvous_threshold in inf 0; do
    what="$transport, rendezvous from $rendezvous_threshold bytes on"
    ucx=(verbena run --sysfs -- env "UCX_TLS=$transport,self" "UCX_RNDV_THRESH=$rendezvous_threshold"
      UCX_SOCKADDR_TLS_PRIORITY=rdmacm timeout 60 "$work/ucx" -p 13444 -s 5000 -i 100 -c tag)
    start_on b "${ucx[@]}" >"$work/server" 2>&1 &
    server=$!
    until_true 20 listens || fail "$what: $(cat "$work/server")"
    for client in 1 2 3; do
      on a "${ucx[@]}" -a "$(address_of b 4)" >"$work/client" 2>&1 ||
        fail "$what, client $client: exit $?: $(end_of "$work/client"); server: $(end_of "$work/server")"
      # The example also prints this if the server has closed first, which is not a failure.
      ! grep -qi 'unable\|wrong' "$work/client" || fail "$what, client $client: $(cat "$work/client")"
      clients=$((clients + 1))
    done
    kill $server
    wait $server || true
    until_true 20 listener_is_closed || fail "the listener of the dead server still exists"
    ! grep -qi 'unable\|wrong' "$work/server" || fail "$what: the server: $(cat "$work/server")"
    [ "$(grep -c 'received a connection request' "$work/server")" -eq 3 ] || fail "$what: not three: $(cat "$work/server")"
  done
  echo "$transport: ok"
done
check_captures
requests=$(fields b 'infiniband.mad.attributeid == 0x0010' -e frame.number | wc -l)
[ "$requests" -ge $clients ] || fail "$requests requests of the CM for $clients clients: not all clients have used the CM"
