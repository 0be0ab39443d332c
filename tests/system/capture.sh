#!/bin/bash
# tshark reads a capture of `run --pcap`.  It must find each kind of message that rping causes, and no malformed packet.
. "$(dirname "$0")/lib.sh"
need rping tshark

start run -- rping -s -C 20 -S 9000 >"$work/server" 2>&1 &
server=$!
wait_listening 7174
verbena run --pcap "$work/rping.pcapng" -- timeout 60 rping -c -a 127.0.0.1 -C 20 -S 9000 -V \
  >"$work/client" 2>&1 || fail "client: $(cat "$work/client")"
wait $server || fail "server: $(cat "$work/server")"

is_complete() { tshark -r "$work/rping.pcapng" -T fields -e frame.number >"$work/frames" 2>"$work/errors" &&
  [ ! -s "$work/errors" ] || ! grep -q 'cut short' "$work/errors"; }
until_true 10 is_complete || fail "the file is cut short: $(cat "$work/errors")"

# tshark guesses that some SENDs are RPC over RDMA, and then calls them malformed.
tshark -r "$work/rping.pcapng" --disable-protocol rpcordma >"$work/text" 2>/dev/null
for message in ConnectRequest ConnectReply ReadyToUse Disconnect; do
  grep -q "$message" "$work/text" || fail "no $message in the capture: $(head -20 "$work/text")"
done
for packet in 'RC Send Only' 'RC RDMA Read Request' 'RC RDMA Read Response' 'RC RDMA Write' 'RC Acknowledge'; do
  grep -qi "$packet" "$work/text" || fail "no '$packet' in the capture"
done
if grep -iE 'malformed|unknown' "$work/text"; then fail "malformed packets or unknown opcodes"; fi
[ "$(tshark -r "$work/rping.pcapng" --disable-protocol rpcordma -Y _ws.malformed 2>/dev/null | wc -l)" -eq 0 ] ||
  fail "malformed packets"

# The packets must be in order of time.  A program that loses the processor between the clock and its record may write
# that record late, so one record of a hundred may be.
tshark -r "$work/rping.pcapng" -T fields -e frame.time_epoch >"$work/times"
awk '$1 < last { late++ } $1 > last { last = $1 } END { exit late * 100 > NR }' "$work/times" ||
  fail "not in order of time"
echo "$(wc -l <"$work/times") packets"
