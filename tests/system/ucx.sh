#!/bin/bash
# ctest: PLAIN
# Runs unmodified UCX between two hosts, with its reliable connections and with its datagrams.  UCX looks for devices in
# the file system, so it needs --sysfs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need ucx_perftest ucx_info tshark python3
unshare --mount true 2>/dev/null || skip "no mount namespaces here"

# The server listens on this port for the exchange of addresses.
control_port_open() { on b ss -ltnH "sport = :13337" | grep . >/dev/null; }
make_hosts 1500
on a verbena run --sysfs -- timeout 60 ucx_info -d >"$work/info" 2>&1 || fail "ucx_info: $(tail -5 "$work/info")"
for transport in rc_verbs ud_verbs; do
  grep -A1 "Transport: $transport" "$work/info" | grep -q 'Device: verbena0:1' || fail "UCX has no $transport: $(cat "$work/info")"
done
# rc_v uses rc_verbs, and ud_verbs to set connections up.
for transport in rc_v ud_v; do
  for test in tag_lat tag_bw ucp_put_lat ucp_get ucp_fadd ucp_am_lat; do
    size=8
    [ $test != tag_bw ] || size=100000
    ucx=(env "UCX_TLS=$transport,self" timeout 60 ucx_perftest -t $test -s $size -n 300 -w 10)
    start_on b verbena run --sysfs -- env "UCX_TLS=$transport,self" timeout 60 ucx_perftest >"$work/server" 2>&1 &
    server=$!
    until_true 20 control_port_open || fail "$transport: $(cat "$work/server")"
    on a verbena run --sysfs -- "${ucx[@]}" "$(address_of b 4)" >"$work/client" 2>&1 ||
      fail "$transport, $test: exit $?: $(tail -5 "$work/client"); server: $(tail -5 "$work/server")"
    wait $server || fail "$transport, $test: the server: $(tail -5 "$work/server")"
    ! grep -q 'ERROR\|WARN' "$work/client" "$work/server" || fail "$transport, $test: $(cat "$work/client" "$work/server")"
    grep -q '^Final: *300 ' "$work/client" || fail "$transport, $test: $(cat "$work/client")"
  done
  echo "$transport: ok"
done
check_captures
