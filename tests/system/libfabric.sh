#!/bin/bash
# ctest: PLAIN
# Runs libfabric's verbs provider, unmodified.  Datagrams run between two hosts.  Connected end points (by the RDMA CM),
# and reliable datagrams over connected end points, run within one host.  fi_pingpong verifies the data.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need fi_pingpong fi_info tshark python3

# The server listens on this port for the exchange of addresses.
control_port_open() { on b ss -ltnH "sport = :47592" | grep . >/dev/null; }
make_hosts 1500
on a verbena run -- timeout 60 fi_info -p verbs >"$work/info" 2>&1 || fail "fi_info: $(cat "$work/info")"
for type in MSG DGRAM; do
  grep -q "type: FI_EP_$type" "$work/info" || fail "fi_info shows no $type end points: $(cat "$work/info")"
done
for type in msg dgram rdm; do
  client=a server_address=$(address_of b 4)
  case $type in
    # The server listens on the address of "localhost" if a device has this address, as Verbena's device does.  So the
    # client must be on the same host.
    msg | rdm)
      client=b server_address=127.0.0.1
      sizes=(64 65536 1048576)
      ;;
    dgram) sizes=(64 1024) ;;  # a datagram must fit into one packet
  esac
  for size in "${sizes[@]}"; do
    start_on b verbena run -- timeout 60 fi_pingpong -p verbs -e $type -S "$size" -I 20 -c >"$work/server" 2>&1 &
    server=$!
    until_true 20 control_port_open || fail "$type: $(cat "$work/server")"
    on $client verbena run -- timeout 60 fi_pingpong -p verbs -e $type -S "$size" -I 20 -c "$server_address" \
      >"$work/client" 2>&1 ||
      fail "$type, $size: exit $?: $(tail -5 "$work/client"); server: $(tail -5 "$work/server")"
    wait $server || fail "$type, $size: the server: $(tail -5 "$work/server")"
    grep -qE '^[0-9]+[kmg]? +20 +=20 ' "$work/client" || fail "$type, $size: $(cat "$work/client")"
    ! grep -qi 'error' "$work/client" "$work/server" || fail "$type, $size: $(cat "$work/client" "$work/server")"
  done
  echo "$type: ok"
done
check_captures
