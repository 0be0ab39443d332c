#!/bin/bash
# Changes the interfaces of a host while data flows.  Addresses are added and removed, an interface goes down and up,
# and a host gets a second interface.  Also checks that packets have the values that a program has set for its path.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need rping ibv_devinfo ibv_rc_pingpong ibv_asyncwatch tshark ss python3
source "$(dirname "${BASH_SOURCE[0]}")/lib_ends.sh"

# fails_after NAME MILLISECONDS: checks that a request of NAME fails with "transport retry exceeded", but not before
# that time.
fails_after() {
  expect_answer "$1" failed
  read -r _ status elapsed_ms <<<"$reply"
  [ "$status" = 12 ] || fail "$1: completion status $status, not 12 (retry exceeded)"
  [ "$elapsed_ms" -ge "$2" ] || fail "$1: gave up after $elapsed_ms ms; the QP's timeout and retries need $2 ms"
  echo "$1: transport retry exceeded after $elapsed_ms ms (at least $2 ms are required)"
}
# gids HOST: prints a line "INDEX GID" for each GID.
gids() { on "$1" verbena run -- ibv_devinfo -v | sed -n 's/^[[:space:]]*GID\[ *\([0-9]*\)\]:[[:space:]]*\([0-9a-f:.]*\).*/\1 \2/p'; }
gid_index_of() { gids "$1" | awk -v gid="$2" '$2 == gid { print $1 }'; }
# One change of the interfaces may cause two "GID table change" events.  The second one may satisfy a later wait_event, so
# the test also waits for the GIDs themselves.
has_gid() { [ -n "$(gid_index_of "$1" "$2")" ]; }
lacks_gid() { ! has_gid "$@"; }
has_gid_at() { [ "$(gid_index_of "$1" "$2")" = "$3" ]; }
port_is() { on "$1" verbena run -- ibv_devinfo | grep "state:.*PORT_$2" >/dev/null; }
check_rping() {  # check_rping ADDRESS: runs rping from a to an address of b
  local server
  start_on b verbena run -- timeout 60 rping -s -a "$1" -C 5 -S 3000 -V >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens || fail "rping -s: $(cat "$work/server")"
  on a verbena run -- timeout 60 rping -c -a "$1" -C 5 -S 3000 -V >"$work/client" 2>&1 ||
    fail "rping to $1: $(tail -3 "$work/client")"
  wait $server || fail "rping's server on $1: $(tail -3 "$work/server")"
}
listens_tcp() { [ -n "$(on b ss -tlnH "sport = :18515")" ]; }
listens() { on b verbena ps | grep "listening.*:7174\b" >/dev/null; }

make_hosts 1500

# ---- an address is added and removed; requests fail after 8 tries of 268 ms (4.096 us * 2^16) or 4.3 s (2^20)
start_endpoint watcher a 10.77.0.1 timeout=20
start_endpoint its_peer b 10.77.0.2
connect_endpoints watcher its_peer
send_command watcher "flow 20000"
expect_answer watcher flowing
[ -z "$(gid_index_of a 10.77.0.11)" ] || fail "there is a GID of an address that the host does not have: $(gids a)"
start_on a verbena run -- ibv_asyncwatch >"$work/asyncwatch" 2>&1 &
asyncwatch=$!
is_watching() { gone $asyncwatch || grep -q 'async event FD' "$work/asyncwatch"; }
until_true 20 is_watching || fail "ibv_asyncwatch: $(cat "$work/asyncwatch")"
on a ip address add 10.77.0.11/24 dev eth0
wait_event watcher "GID table change"
sees_gid_change() { grep -q 'event_type IBV_EVENT_GID_CHANGE (18), port 1' "$work/asyncwatch"; }
until_true 20 sees_gid_change || fail "ibv_asyncwatch: $(cat "$work/asyncwatch")"
kill $asyncwatch
until_true 20 has_gid a ::ffff:10.77.0.11 || fail "no GID for a new address: $(gids a)"
index=$(gid_index_of a ::ffff:10.77.0.11)
for name in short long; do
  timeout=16
  [ $name = short ] || timeout=20
  start_endpoint $name a 10.77.0.11 timeout=$timeout
  start_endpoint peer_of_$name b 10.77.0.2 timeout=$timeout
  connect_endpoints $name peer_of_$name
  check_data $name
done
on a ip address del 10.77.0.11/24 dev eth0
wait_event watcher "GID table change"
until_true 20 lacks_gid a ::ffff:10.77.0.11 || fail "the GID of a removed address still exists: $(gids a)"
send_command short "write 50000"
send_command long "write 50000"
fails_after short 2147
check_flow watcher
on a ip address add 10.77.0.11/24 dev eth0
wait_event watcher "GID table change"
until_true 20 has_gid_at a ::ffff:10.77.0.11 "$index" || fail "GID $index comes back at another index: $(gids a)"
expect_answer long good
check_data long
port_is a ACTIVE || fail "the port is not active"
echo "an address was added, removed and added again: index $index"

# ---- addresses of a second family are removed and added while data of the first family flows
for host in a b; do
  on $host ip -6 address flush dev eth0
done
wait_event watcher "GID table change"
until_true 20 lacks_gid a fd77::1 || fail "an IPv6 GID still exists: $(gids a)"
on a ip address add fd77::1/64 dev eth0 nodad
on b ip address add fd77::2/64 dev eth0 nodad
wait_event watcher "GID table change"
wait_event its_peer "GID table change"
until_true 20 has_gid a fd77::1 && until_true 20 has_gid b fd77::2 ||
  fail "no GIDs for the new addresses: $(gids a) $(gids b)"
start_endpoint six a fd77::1 timeout=20
start_endpoint peer_of_six b fd77::2 timeout=20
connect_endpoints six peer_of_six
check_data six
check_flow watcher
echo "an address of the other family was added: ok"

# ---- the interface goes down and comes back; IPv6 addresses disappear with it
start_endpoint short4 a 10.77.0.1 timeout=16
start_endpoint peer_of_short4 b 10.77.0.2 timeout=16
connect_endpoints short4 peer_of_short4
check_data short4
index=$(gid_index_of a fd77::1)
endpoint_events[watcher]=
on a ip link set eth0 down
wait_event watcher "port error"
wait_event watcher "GID table change"
port_is a DOWN || fail "the port of a host without a network is not down"
on a verbena agent status | grep "DOWN: no network interface with an address is up" >/dev/null ||
  fail "agent status: $(on a verbena agent status)"
send_command short4 "write 50000"
send_command six "write 50000"
fails_after short4 2147
on a ip link set eth0 up
wait_event watcher "port active"
on a ip address add fd77::1/64 dev eth0 nodad
wait_event watcher "GID table change"
until_true 20 has_gid_at a fd77::1 "$index" || fail "GID $index comes back at another index: $(gids a)"
port_is a ACTIVE || fail "the port is not active again"
expect_answer six good
check_flow watcher
check_rping 10.77.0.2
check_rping fd77::2
echo "the interface went down and came back: connections continue, and new ones are made"

# ---- a host has several interfaces
test_two_interfaces() {  # test_two_interfaces KIND...: adds an interface of this kind to each host
  local host
  for host in a b; do
    on $host ip link add link eth0 name second type "$@" 2>"$work/ip" || return 1
    on $host ip link set second up
  done
  on a ip address add 10.78.0.1/24 dev second
  on b ip address add 10.78.0.2/24 dev second
  wait_event watcher "GID table change"
  wait_event its_peer "GID table change"
  until_true 20 has_gid a ::ffff:10.78.0.1 && until_true 20 has_gid b ::ffff:10.78.0.2 ||
    fail "no GIDs for the addresses of the second interface: $(gids a) $(gids b)"
  start_endpoint other a 10.78.0.1 timeout=20
  start_endpoint peer_of_other b 10.78.0.2 timeout=20
  connect_endpoints other peer_of_other
  check_data other
  check_rping 10.78.0.2
  on b ip link set second down
  check_flow watcher
  port_is b ACTIVE || fail "the port is down, although only one of two interfaces is down"
  on b ip link set second up
  check_data other
  on a ip link del second
  wait_event watcher "GID table change"
  until_true 20 lacks_gid a ::ffff:10.78.0.1 || fail "the GID of a removed interface still exists: $(gids a)"
  check_flow watcher
  on b ip link del second
  wait_event its_peer "GID table change"
  stop_endpoint other
  stop_endpoint peer_of_other
  echo "two interfaces ($*): each works, also while the other is down"
}
test_two_interfaces macvlan mode bridge || skip "no macvlan interfaces here: $(cat "$work/ip")"
test_two_interfaces vlan id 5 || echo "VLAN: not tested, since this kernel has none ($(cat "$work/ip"))"

# ---- packets have the traffic class, hop limit, flow label and MTU that a program has set for its path
# flow_port LABEL: prints the UDP source port that the flow label determines.
flow_port() { echo $((0xc000 | (($1 & 0x3fff) ^ ($1 >> 14)))); }  # annex A17.3.2
# The QP numbers of the peers select the packets.  Source ports would not, because other flows may have the same ones.
peers=
for host in a b; do on $host ip link set eth0 mtu 9000; done
for family in 4 6; do
  [ $family = 4 ] && ends=(10.77.0.1 10.77.0.2) || ends=(fd77::1 fd77::2)
  for mtu in 1 2 3 4 5; do
    start_endpoint mtu a "${ends[0]}" timeout=20 mtu=$mtu class=104 hops=$((20 + mtu)) label=$((0x60320 + mtu))
    start_endpoint peer_of_mtu b "${ends[1]}" timeout=20 mtu=$mtu
    connect_endpoints mtu peer_of_mtu
    read -r _ qpn _ <<<"${endpoint_address[peer_of_mtu]}"
    peers+="${peers:+,}0x$qpn"
    check_data mtu
    stop_endpoint mtu
    stop_endpoint peer_of_mtu
  done
done
for mtu in 256 512 1024 2048 4096; do
  index=$(gid_index_of b ::ffff:10.77.0.2)
  start_on b verbena run -- timeout 60 ibv_rc_pingpong -g "$index" -m $mtu -n 20 -s 30000 >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp || fail "ibv_rc_pingpong: $(cat "$work/server")"
  on a verbena run -- timeout 60 ibv_rc_pingpong -g "$(gid_index_of a ::ffff:10.77.0.1)" -m $mtu -n 20 \
    -s 30000 10.77.0.2 >"$work/client" 2>&1 || fail "ibv_rc_pingpong -m $mtu: $(cat "$work/client")"
  wait $server || fail "ibv_rc_pingpong -m $mtu, the server: $(cat "$work/server")"
done

# ---- the MTUs of the hosts differ, so one host can send longer packets than the other
on b ip link set eth0 mtu 1500
count_too_big() {
  on b verbena ps --counters --json | python3 -c '
import json, sys
print(sum(p["counters"].get("udp_out_too_big", 0) for p in json.load(sys.stdin)["processes"]))'
}
start_endpoint wide a 10.77.0.1 mtu=5
start_endpoint narrow b 10.77.0.2 mtu=5
connect_endpoints wide narrow
send_command narrow "write 40960"  # needs ten full packets, which the interface cannot send
fails_after narrow 536
[ "$(count_too_big)" -gt 0 ] || fail "packets that are too big are not counted: $(on b verbena ps --counters)"
start_endpoint wide3 a 10.77.0.1 mtu=3 timeout=20
start_endpoint narrow3 b 10.77.0.2 mtu=3 timeout=20
connect_endpoints wide3 narrow3
check_data wide3
for name in "${!endpoint_in[@]}"; do stop_endpoint "$name"; done

captures
tshark -r "$work/line.a.pcap" -Y "infiniband.bth.destqp in {$peers}" \
  -T fields -e ip.src -e ip.dsfield -e ip.ttl -e ipv6.src -e ipv6.tclass -e ipv6.hlim -e udp.srcport \
  -e udp.length >"$work/wire" 2>"$work/tshark" || fail "tshark: $(cat "$work/tshark")"
python3 - "$work/wire" "$(flow_port 0x60320)" <<'PYTHON' || fail "packets do not have the values that were set"
import sys
found = {}
for line in open(sys.argv[1]):
    source, class_, hops, port, length = line.split()
    key = source, int(port) - int(sys.argv[2])
    found.setdefault(key, [set(), 0])
    found[key][0].add((int(class_, 0), int(hops)))
    found[key][1] = max(found[key][1], int(length))
# UDP, BTH, RETH and ICRC are 40 bytes.
wanted = {(source, mtu): [{(104, 20 + mtu)}, (128 << mtu) + 40]
          for source in ("10.77.0.1", "fd77::1") for mtu in (1, 2, 3, 4, 5)}
if found != wanted:
    sys.exit(f"source and MTU: [(traffic class, hop limit), largest UDP length]\nfound  {found}\nwanted {wanted}")
PYTHON
echo "packets have the traffic class, hop limit, source port and path MTU that were set"
