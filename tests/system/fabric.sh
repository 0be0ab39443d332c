#!/bin/bash
# Runs programs on the virtual hosts of a fabric by `verbena fabric` and `verbena run --node`, as a user does.
. "$(dirname "$0")/lib.sh"
unset VERBENA_LINK  # it may be udp, but a virtual host has no UDP
need ibv_devices ibv_rc_pingpong ibv_ud_pingpong rping ucmatose udaddy mckey python3 ss

# on HOST PROGRAM...: runs a program on a host of the fabric.
on() { verbena run --fabric lab --node "$1" --verbose -- "${@:2}"; }
start_on() { start run --fabric lab --node "$1" --verbose -- "${@:2}"; }
listens() { VERBENA_FABRIC=lab VERBENA_NODE=$1 verbena ps | grep -q "listening.*:$2\b"; }
wait_listens() { until_true 20 listens "$1" "$2" || fail "nothing listens on port $2 of host $1"; }
counter() { verbena fabric show lab --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["fabric"]["counters"][sys.argv[1]])' "$1"; }
has_members() { [ "$(counter multicast_members)" -eq "$1" ]; }
listens_tcp() { ss -ltnH "sport = :$1" | grep -q .; }
# run_pair WHAT SERVER_HOST PORT "SERVER..." CLIENT_HOST "CLIENT...": runs a server and its client.  Both must succeed.
run_pair() {
  local server
  # shellcheck disable=SC2086
  start_on "$2" timeout 60 $4 >"$work/server" 2>&1 &
  server=$!
  wait_listens "$2" "$3"
  # shellcheck disable=SC2086
  on "$5" timeout 60 $6 >"$work/client" 2>&1 || fail "$1: the client: $(tail -5 "$work/client")"
  wait $server || fail "$1: the server: $(tail -5 "$work/server")"
  echo "$1: ok"
}

# ---- `fabric make` and `fabric check`
verbena fabric make --hosts 3 --rails 2 >"$work/made.toml"
verbena fabric check "$work/made.toml" | grep -q '3 hosts, 6 rails' || fail "check of a made file"
verbena fabric make --fat-tree 16 >"$work/tree.net"
verbena fabric check "$work/tree.net" | grep -q '16 HCAs, 8 switches, 32 links' || fail "check of a fat tree"
verbena fabric make --hosts 3 --rails 2 --infiniband >"$work/two.net"
verbena fabric check "$work/two.net" | grep -q '3 HCAs, 2 switches, 6 links' || fail "check of hosts at two switches"
cat >"$work/lab.toml" <<'TOML'
[[hosts]]
name = "a"
rails = [
  { network = "red", addresses = ["10.31.0.1", "fd31::1"] },
  { network = "blue", addresses = ["10.31.1.1"] },
]
[[hosts]]
name = "b"
rails = [
  { network = "red", addresses = ["10.31.0.2", "fd31::2"] },
  { network = "blue", addresses = ["10.31.1.2"], mtu = 1500 },
]
[[hosts]]
name = "c"
rails = [ { network = "green", addresses = ["10.31.2.3"] } ]
TOML
sed 's/mtu = 1500/mtu = 15/' "$work/lab.toml" >"$work/bad.toml"
if verbena fabric up "$work/bad.toml" 2>"$work/err"; then fail "fabric up accepts a bad file"; fi
grep -q "bad.toml:11:56: 'mtu' must be a number from 576 to 65535" "$work/err" || fail "bad file: $(cat "$work/err")"
if verbena fabric up "$work/none.toml" 2>"$work/err"; then fail "fabric up accepts a missing file"; fi
grep -q 'none.toml: No such file' "$work/err" || fail "missing file: $(cat "$work/err")"

# ---- `fabric up`, and the choice of a fabric and a host
if verbena run --node a -- true 2>"$work/err"; then fail "a program ran without a fabric"; fi
grep -q 'no fabric is up' "$work/err" || fail "no fabric: $(cat "$work/err")"
verbena fabric up "$work/lab.toml"
if verbena fabric up "$work/lab.toml" 2>"$work/err"; then fail "a fabric came up twice"; fi
grep -q 'up already' "$work/err" || fail "twice: $(cat "$work/err")"
verbena fabric up "$work/made.toml" --name other
verbena fabric ls >"$work/ls"
grep -q '^lab .* 3 ' "$work/ls" && grep -q '^other ' "$work/ls" || fail "ls: $(cat "$work/ls")"
if verbena run --node a -- true 2>"$work/err"; then fail "run chose one of two fabrics"; fi
grep -q 'name one: lab, other' "$work/err" || fail "two fabrics: $(cat "$work/err")"
if verbena run --node z --fabric lab -- true 2>"$work/err"; then fail "a program ran on a host that does not exist"; fi
grep -q "has no host 'z'; it has: a, b, c" "$work/err" || fail "no host: $(cat "$work/err")"
on a ibv_devices >"$work/devices"
grep -q verbena1 "$work/devices" || fail "host a does not have two devices: $(cat "$work/devices")"
verbena fabric show lab | grep 'verbena1.*blue.*1500.*10.31.1.2' >/dev/null || fail "show: $(verbena fabric show lab)"

# ---- programs
run_pair rping a 7174 "rping -s -C 20 -S 20000 -V" b "rping -c -a 10.31.0.1 -C 20 -S 20000 -V"
run_pair "rping, IPv6" a 7174 "rping -s -a fd31::1 -C 5 -V" b "rping -c -a fd31::1 -C 5 -V"
run_pair "rping on the second rail" b 7174 "rping -s -C 5 -S 20000 -V" a "rping -c -a 10.31.1.2 -C 5 -S 20000 -V"
run_pair "rping on one host" a 7174 "rping -s -C 5 -V" a "rping -c -a 127.0.0.1 -C 5 -V"
run_pair ucmatose a 7471 "ucmatose -c 3" b "ucmatose -c 3 -s 10.31.0.1"
run_pair udaddy a 7174 "udaddy -c 3" b "udaddy -c 3 -s 10.31.0.1"
[ "$(counter forwarded)" -gt 0 ] || fail "nothing went through the switch"

# Programs must find loopback and the interfaces of their host, and no other interface of this machine.
interfaces=$VB_PREFIX/tests/programs/interfaces
on b "$interfaces" >"$work/interfaces" || fail "interfaces: $(cat "$work/interfaces")"
# expect_interface PATTERN: fails unless a line of the program's output matches.
expect_interface() { grep -qE "^$1\$" "$work/interfaces" || fail "no interface '$1': $(cat "$work/interfaces")"; }
expect_interface 'lo up running loopback hardware type 772 address 0{12}'
expect_interface 'verbena0 up running multicast hardware type 1 address 02[0-9a-f]{10}'
expect_interface 'verbena1 up running multicast hardware type 1 address 02[0-9a-f]{10}'
expect_interface 'lo 127.0.0.1 mask 255.0.0.0'
expect_interface 'verbena0 10.31.0.2 mask 255.255.255.0'
expect_interface 'verbena0 fd31::2'
expect_interface 'verbena1 10.31.1.2 mask 255.255.255.0'
! grep -vE '^(lo|verbena[01]) ' "$work/interfaces" || fail "b has foreign interfaces"
[ "$(grep -c hardware "$work/interfaces")" = 3 ] || fail "b has not three interfaces: $(cat "$work/interfaces")"
[ "$(grep -o 'address 02.*' "$work/interfaces" | sort -u | wc -l)" = 2 ] || fail "two rails have one hardware address"
names=$(on c python3 -c 'import socket; print([name for _, name in socket.if_nameindex()])')
[ "$names" = "['lo', 'verbena0']" ] || fail "Python finds $names"
# Children of the program must be on the same host.  An interface whose link is down must not be "running".
verbena fabric fault link --name lab c green down >"$work/out"
on c bash -c "exec '$interfaces'" >"$work/interfaces" || fail "interfaces: $(cat "$work/interfaces")"
expect_interface 'verbena0 up multicast hardware type 1 address 02[0-9a-f]{10}'
verbena fabric fault link --name lab c green up >"$work/out"
"$interfaces" >"$work/machine" || fail "interfaces of this machine"
verbena run --fabric lab --node b --interfaces machine -- "$interfaces" >"$work/interfaces"
cmp "$work/machine" "$work/interfaces" || fail "--interfaces machine shows: $(cat "$work/interfaces")"
# The files of --sysfs must also name these interfaces.
if unshare --mount true 2>/dev/null; then
  # shellcheck disable=SC2016
  verbena run --fabric lab --node b --sysfs -- sh -c 'cd /sys/class/infiniband/verbena1
    cat ports/1/gid_attrs/ndevs/0; ls device/net; cd device/net/verbena1; cat mtu ifindex type operstate address' \
    >"$work/out" 2>&1 || fail "--sysfs: $(cat "$work/out")"
  hardware=$(on b "$interfaces" | sed -n 's/^verbena1 up .* address //p' | sed 's/../&:/g; s/:$//')
  [ "$(paste -sd' ' "$work/out")" = "verbena1 verbena1 1500 3 1 up $hardware" ] || fail "--sysfs shows: $(cat "$work/out")"
fi
echo "interfaces: ok"

# The ends of the pingpong programs exchange their queue pair numbers by TCP, over the network of this machine.
port=20000
pingpong() {
  local server
  port=$((port + 1))
  start_on a timeout 60 "$@" -p $port >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp $port || fail "$1: the server: $(cat "$work/server")"
  on b timeout 60 "$@" -p $port 127.0.0.1 >"$work/client" 2>&1 || fail "$1: the client: $(tail -3 "$work/client")"
  wait $server || fail "$1: the server: $(tail -3 "$work/server")"
  echo "$*: ok"
}
pingpong ibv_rc_pingpong -g 0 -n 1000 -m 4096 -s 65536
pingpong ibv_uc_pingpong -g 0 -n 200
pingpong ibv_ud_pingpong -g 0 -n 200 -s 2000

# A message to a group must reach the member on the same network.
start_on b timeout 60 mckey -m 239.7.7.7 -b 10.31.0.2 -C 10 >"$work/server" 2>&1 &
member=$!
until_true 20 has_members 1 || fail "no member: $(cat "$work/server")"
on a timeout 60 mckey -m 239.7.7.7 -b 10.31.0.1 -s -C 10 >"$work/client" 2>&1 || fail "mckey sends: $(cat "$work/client")"
wait $member || fail "mckey receives: $(cat "$work/server")"
until_true 20 has_members 0 || fail "members are left"
echo "mckey: ok"

# ---- connections that cannot work are refused with a reason
# fails_with WHAT TEXT HOST COMMAND...: checks that the command fails on the host, and prints the text.
fails_with() {
  local what=$1 text=$2
  shift 2
  if on "$@" >"$work/out" 2>&1; then fail "$what worked"; fi
  grep -q "$text" "$work/out" || fail "$what: $(cat "$work/out")"
  echo "$what: ok"
}
fails_with "another network" \
  "rail verbena0 of host a (network red, MTU 9000) does not reach rail verbena0 of host c (network green, MTU 9000)" \
  a timeout 20 rping -c -a 10.31.2.3 -C 1
fails_with "no such address" "no host of the fabric has the address 10.31.0.9" a timeout 20 rping -c -a 10.31.0.9 -C 1
# The path allows packets with at most 1024 bytes of data, but the program sends 4096 bytes in each packet.
start_on b timeout 60 ibv_rc_pingpong -d verbena1 -g 0 -m 1024 -p 20100 >"$work/server" 2>&1 &
server=$!
until_true 20 listens_tcp 20100 || fail "the server: $(cat "$work/server")"
fails_with "too long packets" "too long for the route from rail verbena1 of host a .* to rail verbena1 of host b" \
  a timeout 30 ibv_rc_pingpong -d verbena1 -g 0 -m 4096 -s 16384 -p 20100 127.0.0.1
kill $server 2>/dev/null || true
wait $server || true

# ---- a stopped program, and the death of the fabric
forwarded_more_than() { [ "$(counter forwarded)" -gt "$1" ]; }
# wait_traffic: waits until the fabric has forwarded 1,000 further packets.
wait_traffic() { until_true 60 forwarded_more_than "$(($(counter forwarded) + 1000))" || fail "rping does not run: $(cat "$work/endless")"; }
start_on a rping -s -p 7200 -S 20000 -V >"$work/stopped" 2>&1 &
stopped=$!
wait_listens a 7200
start_on b timeout 250 rping -c -a 10.31.0.1 -p 7200 -S 20000 -V >"$work/endless" 2>&1 &
client=$!
wait_traffic
stop_process $stopped
run_pair "rping beside a stopped program" a 7174 "rping -s -C 5 -V" b "rping -c -a 10.31.0.1 -C 5 -V"
kill -CONT $stopped
wait_traffic
pid=$(verbena fabric show lab --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["fabric"]["pid"])')
kill -9 "$pid"
status=0
wait $client || status=$?
[ $status -ne 0 ] || fail "the client did not notice the death of the fabric"
[ $status -ne 124 ] || fail "the client hangs after the death of the fabric"
kill $stopped 2>/dev/null || true
wait $stopped || true
if on a ibv_devinfo >"$work/out" 2>&1; then fail "a program ran on a dead fabric"; fi
verbena fabric up "$work/lab.toml"
run_pair "rping after kill -9" a 7174 "rping -s -C 3 -V" b "rping -c -a 10.31.0.1 -C 3 -V"
verbena fabric down lab
verbena fabric down
verbena fabric ls | grep -q 'no fabric is up' || fail "a fabric is left: $(verbena fabric ls)"
check_nothing_left
echo "nothing is left"
