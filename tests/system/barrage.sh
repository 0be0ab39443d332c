#!/bin/bash
# Sends valid and invalid packets of every kind to a host (tests/wire/barrage.h): to its agent, to a program with QPs in
# every state, and to QP numbers of a dead program and of no program.  No process may end, memory must stay bounded, and
# every packet must be counted by reason.  A stream between two other programs must continue.  VB_PACKETS sets the
# number of packets, VB_SEED their seed, and VB_FROM the number of the first one.  A failure names the first packet of
# its round.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need rping python3

packets=${VB_PACKETS:-300000}
round=$((packets < 100000 ? packets : packets < 2000000 ? 100000 : 1000000))
flood_packets=20000  # packets that are sent while the victim is stopped
# These limits are for the resident memory of the agent and of the target ("victim").
agent_kib_max=$((32 * 1024))
victim_kib_max=$((32 * 1024))
[ -z "${VB_PRELOAD:-}" ] || agent_kib_max=$((512 * 1024)) victim_kib_max=$((512 * 1024))

# The stream uses rping's port.  No random packet may be for this port, although most recorded REQs are.
stream_port=7174
victim4=10.78.0.1 victim6=fd78::1 peer4=10.78.0.2 peer6=fd78::2
port=7500

round_start=0
fail_round() { fail "$* (VB_SEED=$line_seed, packets from $round_start)"; }

make_hosts 1500
mkfifo "$work/sender.in" "$work/sender.out" "$work/victim.in"
"$VB_PREFIX/tests/wire/wire_barrage" --host "${host_pid[b]}" --captures "$VB_SOURCE/tests/captures" \
  --seed "$line_seed" <"$work/sender.in" >"$work/sender.out" &
sender_pid=$!
exec {sender_in}>"$work/sender.in" {sender_out}<"$work/sender.out"
read -r reply <&$sender_out || fail "the program that sends the packets did not start"
intact=0  # number of packets with correct IP and UDP headers, which the kernel must deliver
send_command() {
  echo "$*" >&$sender_in
  read -r reply <&$sender_out || fail "the program that sends the packets has ended"
  case $reply in
    error*) fail "the sender, $*: $reply" ;;
    fired=*) [[ $reply =~ intact=([0-9]+) ]] && intact=$((intact + BASH_REMATCH[1])) ;;
  esac
}

on b ip link set eth1 address 02:00:00:00:78:01 mtu 9000 txqueuelen 1000 addrgenmode none up
on b ip address add $victim4/24 dev eth1
on b ip address add $victim6/64 dev eth1 nodad
for peer in $peer4 $peer6; do
  on b ip neighbour replace $peer lladdr 02:00:00:00:78:02 dev eth1 nud permanent
done

# start_victim NAME PORT: sets $started to its pid, and writes its output to $work/NAME.
start_victim() {
  touch "$work/$1"
  start_on b verbena run -- "$VB_PREFIX/tests/programs/victim" $victim4 $victim6 $peer4 $peer6 "$2" \
    <"$work/victim.in" >"$work/$1" 2>"$work/$1.err" &
  started=$!
  exec {victim_in}>"$work/victim.in"
  until_true 20 grep -q '^ready' "$work/$1" || fail "$1: $(cat "$work/$1.err")"
}
# This program is killed before the first packet is sent, because its counters cannot be read after its death.
start_victim dead $((port + 1))
kill -9 $started
{ wait $started; } 2>/dev/null || true
exec {victim_in}>&-

# Runs a stream between the hosts.  Both ends check its data, and no random packet is for their QPs.
start_on b verbena run -- rping -s -P -a "$(address_of b 4)" -S 5000 -V >"$work/stream.server" 2>&1 &
server=$!
listens() { on "$1" verbena ps | grep -q "listening.*:$2\b"; }
until_true 20 listens b $stream_port || fail "the stream's server does not listen"
start_on a verbena run -- rping -c -a "$(address_of b 4)" -S 5000 -V >"$work/stream.client" 2>&1 &
client=$!

start_victim victim $port
victim=$started

qpns_of() { on b verbena ps --json | python3 -c '
import json, sys
for process in json.load(sys.stdin)["processes"]:
    if process["pid"] == int(sys.argv[1]): print(*(qp["qpn"] for qp in process["qps"]))' "$1"; }
connected() { [ -n "$(qpns_of $server)" ]; }
until_true 20 connected || fail "the stream does not run: $(cat "$work"/stream.*)"
{
  cat "$work/victim"
  echo "stranger $(address_of a 4) $(address_of a 6)"
  echo "spared_port $stream_port"
  for qpn in $(qpns_of $server); do echo "spared $qpn"; done
  awk '$1 == "rc" || $1 == "ud" { print "absent", $2 }' "$work/dead" | head -4
} >"$work/facts"
send_command target "$work/facts"
echo "target: $reply"

agent=$(on b verbena agent status --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["agent"]["pid"])')
resident() { awk '$1 == "VmRSS:" { print $2 }' "/proc/$1/status"; }
check_memory() {  # check_memory NAME PID KIB-MAX
  local now
  now=$(resident "$2") && [ -n "$now" ] || fail_round "the $1 has ended: $(cat "$work/victim.err")"
  [ "$now" -le "$3" ] || fail_round "the $1 has $now KiB, and may have $3"
}
check_all_alive() {
  kill -0 $victim 2>/dev/null || fail_round "the victim has ended: $(cat "$work/victim.err")"
  kill -0 $server 2>/dev/null || fail_round "the stream's server has ended: $(tail -3 "$work/stream.server")"
  kill -0 $client 2>/dev/null || fail_round "the stream's client has ended: $(tail -3 "$work/stream.client")"
  check_memory agent "$agent" $agent_kib_max
  check_memory victim $victim $victim_kib_max
}

sent=0
first=${VB_FROM:-0}
send_command from "$first"
start_time=$(date +%s%N)
while [ $sent -lt "$packets" ]; do
  round_start=$((first + sent))
  send_command fire $round
  sent=$((sent + round))
  check_all_alive
  echo "$reply agent=$(resident "$agent")KiB victim=$(resident $victim)KiB"
done
elapsed_ms=$((($(date +%s%N) - start_time) / 1000000))

# Sends more packets than the victim's sockets can hold, while the victim is stopped.
round_start=$((first + sent))
stop_process $victim
send_command fire $flood_packets rush
kill -CONT $victim
check_all_alive

# Checks that the stream has made progress, and still does.
packets_received() { on b verbena ps --counters --json | python3 -c '
import json, sys
print(*(p["counters"]["packets_in"] for p in json.load(sys.stdin)["processes"] if p["pid"] == int(sys.argv[1])))' $server; }
before=$(packets_received)
has_grown() { [ "$(packets_received)" -gt $((before + 100)) ]; }
until_true 20 has_grown || fail_round "the stream has stopped at $before packets"
check_all_alive

# Ends the stream's client, so that no more packets arrive and the kernel's counts match the programs'.  The server must
# live, because its counters belong to the sum.
kill $client
{ wait $client; } 2>/dev/null || true
counters_agree() {
  on b verbena ps --counters --json |
    python3 "$VB_SOURCE/tests/system/_accounts.py" "$agent" >"$work/accounts" 2>"$work/accounts.err"
}
until_true 30 counters_agree || fail_round "$(cat "$work/accounts.err" "$work/accounts")"
cat "$work/accounts"
kernel_count() { sed -n "s/^kernel:.* $1=\([0-9]*\).*/\1/p" "$work/accounts"; }
[ "$(kernel_count RcvbufErrors)" -gt 0 ] || fail_round "no packet was lost, although the sockets were full"
arrived=$(($(kernel_count InDatagrams) + $(kernel_count InErrors)))
[ $arrived -ge $intact ] || fail_round "only $arrived packets arrived, of $intact that the kernel must deliver"
echo "$sent packets in $elapsed_ms ms, $((sent * 1000 / (elapsed_ms + 1))) a second; then $flood_packets without a pause"

# A new connection must work while the victim still runs.
start_on b verbena run -- timeout 60 rping -s -a "$(address_of b 4)" -p 7175 -C 10 -V >"$work/new" 2>&1 &
new=$!
until_true 20 listens b 7175 || fail_round "a new server does not listen: $(cat "$work/new")"
on a verbena run -- timeout 60 rping -c -a "$(address_of b 4)" -p 7175 -C 10 -V >"$work/new.client" 2>&1 ||
  fail_round "a new client: $(tail -3 "$work/new.client")"
wait $new || fail_round "a new server: $(tail -3 "$work/new")"

# The victim checks that no packet has changed its memory.
echo ask >&$victim_in
until_true 20 grep -q '^whole' "$work/victim" || fail_round "the victim's memory: $(cat "$work/victim.err")"
grep '^whole' "$work/victim"
exec {victim_in}>&-
wait $victim || fail_round "the victim's end: $(cat "$work/victim.err")"
kill $server
