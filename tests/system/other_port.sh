#!/bin/bash
# A foreign process has UDP port 4791.  Programs of this host must reach each other by another port and by lanes.  A
# message must tell them why they reach no other host.  The agent must take port 4791 when this port is free and no
# program uses the other port.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset VERBENA_LINK
need ibv_devinfo ibv_rc_pingpong rping mckey python3 ip ss

python3 - >"$work/holder" <<'PYTHON' &
import socket, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.bind(("::", 4791))
print("bound", flush=True)
while True:
    print("got", len(s.recv(10000)), flush=True)  # the test fails if this socket receives a packet
PYTHON
holder=$!
until_true 20 grep -qs bound "$work/holder" || fail "the program that holds the port did not start"
ip addr add 10.9.0.1/32 dev lo && ip link set lo multicast on && ip route add 239.1.0.0/16 dev lo &&
  ip link add veth0 type veth peer name veth1 && ip addr add 10.9.1.1/24 dev veth0 && ip link set veth0 up &&
  ip link set veth1 up && ip neigh add 10.9.1.2 lladdr 02:00:00:00:00:02 dev veth0 || fail "no interfaces"

verbena run -- ibv_devinfo >"$work/info" 2>&1 || fail "ibv_devinfo: $(cat "$work/info")"
grep -q PORT_ACTIVE "$work/info" || fail "the port is not active: $(cat "$work/info")"
why="but only within this host: UDP port 4791 is held by pid $holder (python3)"
verbena agent status | grep -F "active, $why" >/dev/null || fail "agent status does not name the holder: $(verbena agent status)"
verbena doctor >"$work/output" || true
grep -q "programs reach only this host: UDP port 4791 is held by pid $holder" "$work/output" || fail "doctor: $(cat "$work/output")"

for link in lane udp; do
  start run --link $link -- timeout 60 rping -s -C 20 -p 7100 >"$work/server" 2>&1 &
  wait_listening 7100
  verbena run --link $link -- timeout 60 rping -c -a 10.9.0.1 -C 20 -p 7100 -V >"$work/client" 2>&1 ||
    fail "$link: rping: $(cat "$work/client")"
  wait $! || fail "$link: rping's server: $(cat "$work/server")"
  start run --link $link -- timeout 60 stdbuf -oL mckey -m 239.1.2.3 -b 10.9.0.1 -C 10 >"$work/server" 2>&1 &
  until_true 20 grep -q "joined dgid" "$work/server" || fail "$link: mckey does not join: $(cat "$work/server")"
  verbena run --link $link -- timeout 60 stdbuf -oL mckey -m 239.1.2.3 -b 10.9.0.1 -C 10 -s >"$work/client" 2>&1 ||
    fail "$link: mckey: $(cat "$work/client")"
  wait $! || fail "$link: mckey's receiver: $(cat "$work/server")"
done

# ---- a connection to another host fails at once, with the reason
if verbena run --verbose -- timeout 60 rping -c -a 10.9.1.2 -C 1 >"$work/output" 2>&1; then fail "rping reaches another host"; fi
grep -q "only programs of this host can be reached: UDP port 4791 is held by" "$work/output" ||
  fail "a program that connects to another host gets the message: $(cat "$work/output")"

# ---- the port becomes free, and the agent takes it when no program has a socket of the other port
# This server has a queue pair, and so a socket of the other port, before it listens.
start run -- ibv_rc_pingpong -g 0 -p 20001 >"$work/server" 2>&1 &
server=$!
listens_tcp() { ss -Htln "sport = :20001" | grep -q .; }
until_true 20 listens_tcp || fail "ibv_rc_pingpong: $(cat "$work/server")"
kill $holder
wait $holder 2>/dev/null || true
[ "$(grep -c got "$work/holder")" -eq 0 ] || fail "packets came to the holder: $(cat "$work/holder")"
verbena agent status | grep "only within this host" >/dev/null || fail "the agent changed its port while a program had a socket of this port: $(verbena agent status)"
kill $server
wait $server 2>/dev/null || true
reaches_other_hosts() { verbena agent status | grep -E '^ *port +active$' >/dev/null; }
until_true 20 reaches_other_hosts || fail "the agent does not take port 4791: $(verbena agent status)"
verbena agent stop >/dev/null
echo "programs used another port than 4791 within this host, and then 4791 again"
