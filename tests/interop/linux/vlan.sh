#!/bin/bash
# Runs Verbena on two Linux machines that have an untagged network and a VLAN.  Both ends are Verbena, because Linux's
# soft-RoCE has no devices on VLAN interfaces.  Both are guests in QEMU, because this machine's kernel may lack VLANs.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

verbena_on() { on "$1" env LD_LIBRARY_PATH=/lib /verbena/bin/verbena "${@:2}"; }
is_listening() { verbena_on b ps | grep "listening.*:7174\b" >/dev/null; }
run_rping() {  # run_rping ADDRESS: runs rping from host a to an address of host b
  (verbena_on b run -- rping -s -a "$1" -C 10 -S 5000 -V) >"$work/server" 2>&1 &
  local server=$!
  until_true 60 is_listening || fail "rping -s on $1: $(cat "$work/server")"
  verbena_on a run -- rping -c -a "$1" -C 10 -S 5000 -V >"$work/client" 2>&1 ||
    fail "rping to $1: $(tail -n 4 "$work/client" "$work/server")"
  wait $server || fail "rping's server on $1: $(tail -4 "$work/server")"
  echo "rping to $1: ok"
}
has_gid() { verbena_on b run -- ibv_devinfo -v | grep "GID\[.*$1" >/dev/null; }
has_no_gid() { ! has_gid "$1"; }

make_verbena_pair 1500
for host in a b; do
  n=$([ $host = a ] && echo 1 || echo 2)
  on $host ip link add link eth0 name eth0.5 type vlan id 5 || skip "the machine's kernel has no VLANs"
  on $host ip link set eth0.5 mtu 1400 up
  on $host ip address add 10.78.0.$n/24 dev eth0.5
  on $host ip address add fd78::$n/64 dev eth0.5 nodad
done
run_rping 10.78.0.2
run_rping fd78::2
run_rping 10.77.0.2
has_gid ::ffff:10.78.0.2 || fail "no GID on the VLAN interface: $(verbena_on b run -- ibv_devinfo -v)"
on b ip link del eth0.5
until_true 30 has_no_gid ::ffff:10.78.0.2 || fail "the GID of a removed interface still exists"
run_rping 10.77.0.2

addresses=("$(address_of a 4)" 10.78.0.1 fd78::1)
# This command ends the line, so that the captures are complete.
captures
for host in a b; do
  checked=$(python3 "$VB_SOURCE/tests/wire/check_capture.py" "$work/line.$host.pcap" "${addresses[@]}") || fail "the capture of host $host"
  [ "$checked" -gt 0 ] || fail "the capture of host $host has no RoCEv2 packet that the host has sent"
  addresses=("$(address_of b 4)" 10.78.0.2 fd78::2)
  echo "host $host: $checked packets sent, every ICRC right"
done
tags() {  # tags FILTER: prints the VLANs of RoCE packets
  tshark -r "$work/line.a.pcap" -Y "infiniband && ($1)" -T fields -e vlan.id -e infiniband.bth.destqp 2>"$work/tshark" |
    cut -f1 | sort -u | xargs
}
[ "$(tags 'ip.addr == 10.78.0.2 || ipv6.addr == fd78::2')" = 5 ] || fail "packets to the VLAN are not tagged: $(tags 'ip.addr == 10.78.0.2')"
[ -z "$(tags 'ip.addr == 10.77.0.2')" ] || fail "packets to the untagged network are tagged"
malformed=$(tshark -r "$work/line.a.pcap" --disable-protocol rpcordma -Y _ws.malformed 2>"$work/tshark")
[ -z "$malformed" ] || fail "malformed packets: $malformed"
echo "only the packets of VLAN 5 are tagged"
