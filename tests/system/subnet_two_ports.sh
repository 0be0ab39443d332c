#!/bin/bash
# ctest: PLAIN
# Tests HCAs with two ports in one subnet.  Verbs, the RDMA CM, multicast and the InfiniBand CM must work by either
# port.  One port must still work when the cable of the other port is pulled.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm rping mckey ibv_devinfo ibv_rc_pingpong ibstat stdbuf
export TMPDIR=$work

cat >"$work/two.net" <<'NET'
Switch 4 "Sw1"
[1] "Host1"[1]
[2] "Host1"[2]
[3] "Host2"[1]
[4] "Host2"[2]
Hca 2 "Host1"
[1] "Sw1"[1]
[2] "Sw1"[2]
Hca 2 "Host2"
[1] "Sw1"[3]
[2] "Sw1"[4]
NET
verbena fabric up "$work/two.net" >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
on() { verbena run --node "$1" -- "${@:2}"; }
serve() {
  start run --node "$1" -- timeout 60 "${@:2}" >"$work/server" 2>&1 &
  server=$!
}
listens() { VERBENA_FABRIC=two VERBENA_NODE=$1 verbena ps | grep -q "listening.*:$2\b"; }
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }

[ "$(on Host1 ibv_devinfo | grep -c 'state:.*PORT_ACTIVE')" -eq 2 ] || fail "not two active ports: $(on Host1 ibv_devinfo)"
[ "$(on Host2 ibstat | grep -c 'State: Active')" -eq 2 ] || fail "ibstat: $(on Host2 ibstat)"

pingpong() {  # pingpong PORT
  serve Host1 ibv_rc_pingpong -i "$1" -p 18600
  until_true 20 listens_tcp 18600 || fail "port $1: no server: $(cat "$work/server")"
  on Host2 timeout 60 ibv_rc_pingpong -i "$1" -p 18600 127.0.0.1 >"$work/client" 2>&1 || fail "port $1: $(cat "$work/client")"
  wait "$server" || fail "port $1: the server: $(cat "$work/server")"
}
pingpong 1
pingpong 2

# Addresses can be resolved after both ports of each host have joined the IPoIB broadcast group.
both_are_members() { [ "$(verbena sa groups --node "$1" | grep -c 'ff12:401b:ffff::ffff:ffff .* full ')" -eq 2 ]; }
for host in Host1 Host2; do
  until_true 30 both_are_members $host || fail "$host: $(verbena sa groups --node $host)"
done

# Each address must lead to its port, regardless of the order in which the ports have joined the broadcast group.
for address in 10.0.0.1 10.1.0.1 fd00::1 fd00:0:0:1::1; do
  serve Host1 rping -s -a "$address" -C 3
  until_true 20 listens Host1 7174 || fail "$address: no server: $(cat "$work/server")"
  on Host2 timeout 60 rping -c -a "$address" -C 3 -v >"$work/client" 2>&1 || fail "$address: $(cat "$work/client")"
  grep -q 'ping data' "$work/client" || fail "$address: $(cat "$work/client")"
  wait "$server" || fail "$address: the server: $(cat "$work/server")"
done

# The port of the address must join the group, and receive its packets.
has_joined() { grep -q 'joined dgid: ' "$work/server"; }
for port in 0 1; do
  : >"$work/server"  # it has the output of the server before
  serve Host1 stdbuf -oL mckey -m 239.1.2.3 -C 5 -b 10.$port.0.1
  until_true 20 has_joined || fail "10.$port.0.1: no receiver: $(cat "$work/server")"
  on Host2 timeout 60 mckey -m 239.1.2.3 -s -C 5 -b 10.$port.0.2 >"$work/client" 2>&1 || fail "10.$port.0.2: $(cat "$work/client")"
  wait "$server" || fail "10.$port.0.1: the receiver: $(cat "$work/server")"
done

# The InfiniBand CM must find the peer by the GID of either port (tests/api/endpoints.cc).
endpoints=$VB_PREFIX/tests/api/endpoints
has_printed() { gone "$server" || grep -qxF -- "$1" "$work/server"; }
start_server() {  # start_server ARGUMENT...: starts a server that ends with its input
  rm -f "$work/in"
  mkfifo "$work/in"
  : >"$work/server"  # it has the output of the server before
  start run --node Host1 -- timeout 60 "$endpoints" "$@" <"$work/in" >"$work/server" 2>&1 &
  server=$!
  exec 8>"$work/in"
  until_true 20 has_printed listening || fail "endpoints $*: $(cat "$work/server")"
}
end_server() {
  gone "$server" && fail "the server of endpoints has ended: $(cat "$work/server")"
  kill "$server"
  exec 8>&-
  { wait "$server" || true; } 2>/dev/null
}
for gid in fe80::10:1 fe80::10:2; do
  start_server serve 0x10000000abcd0000
  printf 'rounds 10\nbye enough\n' | on Host2 timeout 60 "$endpoints" ask $gid 0x10000000abcd0000 single >"$work/client" 2>&1 ||
    fail "$gid: $(cat "$work/client")"
  grep -qx 'rounds 10' "$work/client" || fail "$gid: $(cat "$work/client")"
  until_true 20 has_printed "disconnected 0 'enough'" || fail "$gid: the server: $(cat "$work/server")"
  end_server
  start_server tell 0x3000000000000001
  on Host2 timeout 60 "$endpoints" learn $gid 0x3000000000000001 hello </dev/null >"$work/client" 2>&1 ||
    fail "datagrams, $gid: $(cat "$work/client")"
  grep -q "^told 0x.* 'welcome'\$" "$work/client" || fail "datagrams, $gid: $(cat "$work/client")"
  end_server
done

verbena fabric fault link Host1:1 Sw1:1 down >/dev/null
one_port_is_active() { [ "$(on Host1 ibv_devinfo | grep -c 'state:.*PORT_ACTIVE')" -eq 1 ]; }
until_true 20 one_port_is_active || fail "the port of the pulled cable stays active: $(on Host1 ibv_devinfo)"
pingpong 2
verbena fabric down >/dev/null
