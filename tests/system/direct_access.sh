#!/bin/bash
# Programs of one host carry out WRITEs and READs directly in each other's memory, even while the target is stopped.
# With a capture or with --link udp, they send packets instead.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset VERBENA_LINK
need ib_write_bw ib_read_bw ib_write_lat ib_read_lat

# counter PID NAME: prints a counter of a program.
counter() { verbena ps --counters --json | python3 -c '
import json, sys
print(*(p["counters"].get(sys.argv[2], 0) for p in json.load(sys.stdin)["processes"] if p["pid"] == int(sys.argv[1])))' \
  "$1" "$2"; }
# counter_exceeds PID NAME VALUE: succeeds if the counter of the program is larger than VALUE.
counter_exceeds() { [ "$(counter "$1" "$2")" -gt "$3" ] 2>/dev/null; }
listens_tcp() { ss -Htln "sport = :$1" | grep -q .; }

# start_pair PORT "OPTIONS" PROGRAM...: starts a server and a client, and sets $server and $client to their pids.
start_pair() {
  local port=$1 options=$2
  shift 2
  # shellcheck disable=SC2086
  start run $options -- "$@" -p "$port" >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens_tcp "$port" || fail "nothing listens on TCP port $port: $(cat "$work/server")"
  start run -- "$@" -p "$port" 127.0.0.1 >"$work/client" 2>&1 &
  client=$!
}
# wait_both NAME: waits until server and client end, which must both succeed.
wait_both() {
  wait $client || fail "$1: the client: $(cat "$work/client")"
  wait $server || fail "$1: the server: $(cat "$work/server")"
}

verbena run -- true
if [ "$(cat /proc/sys/kernel/yama/ptrace_scope 2>/dev/null || echo 0)" -gt 0 ]; then
  skip "the kernel lets no process access the memory of another one (kernel.yama.ptrace_scope)"
fi

# ---- WRITEs and READs of every size work
for program in "ib_write_bw -a -n 200" "ib_read_bw -a -n 200" "ib_write_lat -a -n 200" "ib_read_lat -a -n 200"; do
  # shellcheck disable=SC2086
  start_pair 20101 "" $program -x 0 -F
  wait_both "$program"
done

# ---- both ends count direct accesses, and a stopped target does not delay the client
start_pair 20102 "" ib_write_bw -x 0 -s 1048576 -D 60 --run_infinitely
until_true 20 counter_exceeds $client direct_writes 1000 || fail "no direct WRITEs: $(verbena ps --counters)"
until_true 20 counter_exceeds $server direct_writes 1000 || fail "the target does not count WRITEs: $(verbena ps --counters)"
[ "$(counter $server drop_executed)" -eq 0 ] || fail "the target has dropped records"
stop_process $server
before=$(counter $client direct_writes)
until_true 20 counter_exceeds $client direct_writes $((before + 500)) || fail "the client waits for a stopped target"
kill -CONT $server
until_true 20 counter_exceeds $server direct_writes $((before + 500)) || fail "the target does not read the records of WRITEs"

# ---- the death of the target ends the client's requests
kill -KILL $server
until_true 30 gone $client || fail "the client does not notice that the server is dead"
wait $client && fail "the client does not report that the server is dead" || true
wait $server 2>/dev/null || true

# ---- if a program dies while it writes, the target can continue and end
start_pair 20103 "" ib_write_bw -x 0 -s 1048576 -D 60 --run_infinitely
until_true 20 counter_exceeds $client direct_writes 100 || fail "no direct WRITEs: $(verbena ps --counters)"
kill -KILL $client
kill -INT $server 2>/dev/null || true  # the server may have ended by itself
until_true 30 gone $server || fail "the target does not end after its peer has died"
wait $client $server 2>/dev/null || true

# ---- with a capture or with --link udp, programs send packets
start_pair 20104 "--pcap $work/packets.pcapng" ib_write_bw -x 0 -s 65536 -D 60 --run_infinitely
until_true 20 counter_exceeds $client packets_out 1000 || fail "no packets: $(verbena ps --counters)"
[ "$(counter $client direct_writes)" -eq 0 ] || fail "a capture does not show all WRITEs"
kill $client $server
wait $client $server 2>/dev/null || true
start_pair 20105 "--link udp" ib_write_bw -x 0 -s 65536 -D 60 --run_infinitely
until_true 20 counter_exceeds $client packets_out 1000 || fail "no packets: $(verbena ps --counters)"
[ "$(counter $client direct_writes)" -eq 0 ] || fail "direct WRITEs without a lane"
kill $client $server
wait $client $server 2>/dev/null || true
