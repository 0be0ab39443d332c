#!/bin/bash
# ctest: PLAIN
# Under root's agent for all users, programs of different users must be able to exchange packets by lanes, without
# access to each other's memory.  The agent must give other users no rights that they do not have themselves.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset VERBENA_LINK
need ip rping udaddy mckey ib_send_bw ib_write_bw ib_atomic_bw ibv_rc_pingpong tshark ss setpriv
[ "$(id -u)" -eq 0 ] || skip "only root can start programs of other users"
as_user=(setpriv --reuid=1000 --regid=1000 --clear-groups)
"${as_user[@]}" true 2>/dev/null || skip "there is no other user here"
"${as_user[@]}" test -x "$VB_PREFIX/bin/verbena" || skip "another user cannot run $VB_PREFIX/bin/verbena"
setpriv --clear-groups true 2>/dev/null || skip "root cannot leave its groups here"
chmod 755 "$work"
mkdir "$work/user_directory" && chown 1000:1000 "$work/user_directory"
# verbena_as_user ARGUMENT...: runs the command `verbena` as the other user.
# start_as_user ARGUMENT...: runs it by exec, so that $! is the pid of the program, as `start` does.
verbena_as_user() { "${as_user[@]}" "$VB_PREFIX/bin/verbena" "$@"; }
start_as_user() { exec "${as_user[@]}" "$VB_PREFIX/bin/verbena" "$@"; }

# counter PID NAME: prints a counter of a program.  agent_counter NAME: prints a counter of the agent.
counter() { verbena ps --counters --json | python3 -c '
import json, sys
print(*(p["counters"].get(sys.argv[2], 0) for p in json.load(sys.stdin)["processes"] if p["pid"] == int(sys.argv[1])))' \
  "$1" "$2"; }
agent_counter() { verbena agent status --json | python3 -c '
import json, sys
print(json.load(sys.stdin)["agent"]["counters"].get(sys.argv[1], 0))' "$1"; }
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }
# wait_tcp_listener PORT: waits until a program listens on the TCP port.
wait_tcp_listener() { until_true 20 listens_tcp "$1" || fail "nothing listens on TCP port $1: $(cat "$work/server")"; }
counter_exceeds() { [ "$(counter "$1" "$2")" -gt "$3" ] 2>/dev/null; }

# ---- only root can start such an agent, and only if no other process has the port
if verbena_as_user agent start --all-users >"$work/output" 2>&1; then fail "a user starts an agent for all users"; fi
grep -q "only root can serve all users" "$work/output" || fail "a user who starts it gets the message: $(cat "$work/output")"
start_as_user run -- ibv_rc_pingpong -g 0 -p 20000 >"$work/server" 2>&1 &
holder=$!
wait_tcp_listener 20000
if verbena agent start --all-users >"$work/output" 2>&1; then fail "the agent starts without the port"; fi
grep -q "4791 is held by" "$work/output" || fail "without the port, agent start says: $(cat "$work/output")"
kill $holder
wait $holder 2>/dev/null || true
verbena_as_user agent stop >/dev/null

verbena agent start --all-users >"$work/output" || fail "no agent for all users: $(cat "$work/output")"
verbena_as_user agent status | grep "serves *all users" >/dev/null || fail "a user sees: $(verbena_as_user agent status)"
if verbena_as_user agent stop >"$work/output" 2>&1; then fail "a user stops the agent of all users"; fi
grep -q "only root can stop it" "$work/output" || fail "a user who stops it gets the message: $(cat "$work/output")"

# ---- with either user as server, packets go by a lane, and WRITEs, READs and atomics are sent as packets
for direction in "start start_as_user verbena_as_user" "start_as_user start verbena"; do
  read -r server begin_client client <<<"$direction"
  $server run -- timeout 60 rping -s -C 20 -p 7100 >"$work/server" 2>&1 &
  until_true 20 has_listener 7100 || fail "rping does not listen: $(cat "$work/server")"
  $client run -- timeout 60 rping -c -a 127.0.0.1 -C 20 -p 7100 -V >"$work/client" 2>&1 || fail "rping: $(cat "$work/client")"
  wait $! || fail "rping's server: $(cat "$work/server")"
  for program in ib_send_bw ib_write_bw ib_read_bw ib_atomic_bw; do
    $server run -- $program -x 0 -p 20001 -D 60 --run_infinitely >"$work/server" 2>&1 &
    server_pid=$!
    wait_tcp_listener 20001
    $begin_client run -- $program -x 0 -p 20001 -D 60 --run_infinitely 127.0.0.1 >"$work/client" 2>&1 &
    client_pid=$!
    for pid in $server_pid $client_pid; do
      until_true 20 counter_exceeds "$pid" lane_packets_in 1000 || fail "$program: no packets by a lane: $(verbena ps --counters)"
      [ "$(counter "$pid" direct_writes) $(counter "$pid" direct_reads)" = "0 0" ] || fail "$program: direct access is used"
    done
    kill $server_pid $client_pid
    wait $server_pid $client_pid 2>/dev/null || true
  done
done

# ---- `ps` shows a user only the user's own programs, and shows root all programs
start run -- ibv_rc_pingpong -g 0 -p 20002 >"$work/server" 2>&1 &
root_program=$!
start_as_user run -- ibv_rc_pingpong -g 0 -p 20003 >"$work/server2" 2>&1 &
user_program=$!
wait_tcp_listener 20002
wait_tcp_listener 20003
programs() { "$@" ps --json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["processes"]))'; }
sees_own() { [ "$(programs verbena) $(programs verbena_as_user)" = "2 1" ]; }
until_true 20 sees_own || fail "root sees $(programs verbena) programs, the user $(programs verbena_as_user)"
kill $root_program $user_program
wait $root_program $user_program 2>/dev/null || true

# ---- if one of two programs uses no lanes, the agent relays their packets; datagrams and multicast must work, too
start_as_user run --link udp -- timeout 60 rping -s -C 20 -p 7101 >"$work/server" 2>&1 &
until_true 20 has_listener 7101 || fail "rping does not listen: $(cat "$work/server")"
verbena run -- timeout 60 rping -c -a 127.0.0.1 -C 20 -p 7101 -V >"$work/client" 2>&1 || fail "rping: $(cat "$work/client")"
wait $! || fail "rping's server: $(cat "$work/server")"
[ "$(agent_counter relayed_to_udp)" -ge 20 ] || fail "the agent has relayed only $(agent_counter relayed_to_udp) packets"
start_as_user run -- timeout 60 udaddy -c 4 -C 50 -S 256 >"$work/server" 2>&1 &
until_true 20 has_listener 7174 || fail "udaddy does not listen: $(cat "$work/server")"
verbena run -- timeout 60 udaddy -s 127.0.0.1 -c 4 -C 50 -S 256 >"$work/client" 2>&1 || fail "udaddy: $(cat "$work/client")"
wait $! || fail "udaddy's server: $(cat "$work/server")"
ip addr add 10.9.0.1/32 dev lo && ip link set lo multicast on && ip route add 239.1.0.0/16 dev lo || fail "no multicast on lo"
for pair in "start_as_user verbena" "start verbena_as_user"; do
  read -r receiver sender <<<"$pair"
  : >"$work/server"  # the last receiver has written "joined", too
  $receiver run -- timeout 60 stdbuf -oL mckey -m 239.1.2.3 -b 10.9.0.1 -C 10 >"$work/server" 2>&1 &
  server_has_joined() { grep -q "joined dgid" "$work/server"; }
  until_true 20 server_has_joined || fail "mckey does not join: $(cat "$work/server")"
  $sender run -- timeout 60 stdbuf -oL mckey -m 239.1.2.3 -b 10.9.0.1 -C 10 -s >"$work/client" 2>&1 || fail "mckey: $(cat "$work/client")"
  wait $! || fail "$pair: mckey's receiver: $(cat "$work/server")"
done

# ---- if a program dies, the requests of its peer of another user fail, and the agent still works
start_as_user run -- ib_send_bw -x 0 -p 20004 -D 60 --run_infinitely >"$work/server" 2>&1 &
server_pid=$!
wait_tcp_listener 20004
start run -- ib_send_bw -x 0 -p 20004 -D 60 --run_infinitely 127.0.0.1 >"$work/client" 2>&1 &
client_pid=$!
until_true 20 counter_exceeds $client_pid lane_packets_in 1000 || fail "no packets: $(cat "$work/client")"
kill -KILL $server_pid
until_true 30 gone $client_pid || fail "the client does not notice that its peer is dead"
wait $client_pid && fail "the client does not report that its peer is dead" || true
wait $server_pid 2>/dev/null || true

# ---- a user cannot bind a low port; the files that the agent writes for a user belong to that user
if verbena_as_user run -- timeout 60 rping -s -p 100 >"$work/output" 2>&1; then fail "a user binds port 100"; fi
grep -qi "permission denied\|rdma_bind_addr.*13" "$work/output" || fail "a user who binds port 100 gets the message: $(cat "$work/output")"
cd "$work/user_directory"
start_as_user run --pcap own.pcapng -- timeout 60 rping -s -C 20 -p 7102 >"$work/server" 2>&1 &
until_true 20 has_listener 7102 || fail "no program with a capture: $(cat "$work/server")"
verbena run -- timeout 60 rping -c -a 127.0.0.1 -C 20 -p 7102 -V >"$work/client" 2>&1 || fail "rping: $(cat "$work/client")"
wait $! || fail "rping with a capture: $(cat "$work/server")"
cd /
packets() { tshark -r "$work/user_directory/own.pcapng" -Y "$1" 2>/dev/null | wc -l; }
[ "$(packets infiniband.bth)" -ge 40 ] || fail "a user's capture has $(packets infiniband.bth) packets"
[ "$(packets infiniband.mad)" -eq 0 ] || fail "a user's capture has packets of QP 1, which belong to all users"
[ "$(stat -c %u "$work/user_directory/own.pcapng")" -eq 1000 ] || fail "a user's capture belongs to somebody else"
if verbena_as_user doctor | grep '^ok *run --sysfs' >/dev/null; then
  verbena_as_user run --sysfs -- sh -c 'cd /sys/class/infiniband/verbena0/ports/1 && stat -c %u counters/port_xmit_data &&
    cat counters/port_xmit_data' >"$work/output" 2>&1 || fail "--sysfs: $(cat "$work/output")"
  grep -qx '[0-9]*' "$work/output" || fail "--sysfs: $(cat "$work/output")"
fi

# ---- after the end of this agent, each user has an agent again
verbena agent stop | grep -q "stopped the agent" || fail "root cannot stop the agent"
verbena_as_user run -- ibv_devinfo >"$work/output" || fail "the user gets no separate agent: $(cat "$work/output")"
verbena_as_user agent status | grep -q "serves" && fail "an agent for all users still runs"
verbena_as_user agent stop >/dev/null
echo "two users: their programs use lanes, and may do nothing that only root may do"
