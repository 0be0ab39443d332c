#!/bin/bash
# Every packet that is dropped or sent again, and every refusal, is counted by reason.  The counters of the agent and of
# every program can be read, even while a program is stopped.
. "$(dirname "$0")/lib.sh"
need rping ip python3

export VERBENA_LINK=udp  # lanes, the default, would work even without the network
export VERBENA_LOG=$work/log VERBENA_TRACE=1  # the log of the agent that the first program starts
start run -- rping -s -P >"$work/server" 2>&1 &
server=$!
wait_listening 7174
start run -- rping -c -a 127.0.0.1 -C 100000000 >"$work/client" 2>&1 &
client=$!

# counter PID NAME: prints the value of a counter.  PID may be "agent", or "any" for the sum over all programs.
counter() { verbena ps --counters --json | python3 -c '
import json, sys
who, name = sys.argv[1:]
listing = json.load(sys.stdin)
print(sum(process["counters"][name]
          for process in [dict(listing["agent"], pid="agent")] + listing["processes"]
          if name in process["counters"] and
          (str(process["pid"]) == who or who == "any" and process["pid"] != "agent")))' "$1" "$2"; }
at_least() { local now; now=$(counter "$1" "$2"); [ -n "$now" ] && [ "$now" -ge "$3" ]; }
wait_counter() { until_true 20 at_least "$@" || fail "$2 of $1 is not $3: $(verbena ps --counters)"; }

wait_counter $client packets_in 100
wait_counter $server udp_in_datagrams 100
# count_without_duplicates MESSAGE: prints how often the agent has received the message.  Omits duplicates, because the
# message may have been sent again on a busy machine.
count_without_duplicates() { verbena ps --counters --json | python3 -c '
import json, sys
counters = json.load(sys.stdin)["agent"]["counters"]
print(counters.get(f"cm_{sys.argv[1]}_received", 0) - counters.get(f"cm_{sys.argv[1]}_duplicate", 0))' "$1"; }
for message in req rep rtu; do
  [ "$(count_without_duplicates $message)" -eq 1 ] || fail "one connection's $message: $(verbena ps --counters | grep cm_)"
done
at_least agent cm_rtu_sent 1 || fail "the RTU is not counted: $(verbena ps --counters | grep cm_)"

# Each step of a connection has a counter for its time.  If a program is slow to answer, an MRA may be sent before the
# answer, so a step in the log may begin in an MRA state.
has_time_of() { verbena ps --counters | grep "cm_time_in_$1_up_to_[0-9]*_us" >/dev/null; }
for step in req_sent req_rcvd rep_rcvd rep_sent; do
  has_time_of $step || fail "no time of $step: $(verbena ps --counters | grep cm_)"
done
for step in "CLOSED -> REQ_SENT" "(REQ_SENT|MRA_REQ_RCVD) -> REP_RCVD" \
  "(REP_RCVD|MRA_REP_SENT) -> ESTABLISHED" "CLOSED -> REQ_RCVD" \
  "(REQ_RCVD|MRA_REQ_SENT) -> REP_SENT" "(REP_SENT|MRA_REP_RCVD) -> ESTABLISHED"; do
  grep -qE "cm [0-9a-f]{8} $step after [0-9]+ us, QP 0x[0-9a-f]{6} of 127.0.0.1 with 127.0.0.1 " "$work/log" ||
    fail "no line for $step: $(cat "$work/log")"
done

# The names must have only characters that scripts can use, and no name may appear twice.
verbena ps --counters --json | python3 -c '
import json, re, sys
def unique(pairs):
    names = [name for name, _ in pairs]
    assert len(names) == len(set(names)), names
    return dict(pairs)
listing = json.load(sys.stdin, object_pairs_hook=unique)
for process in [listing["agent"]] + listing["processes"]:
    assert len(process["counters"]) > 30, process
    for name, value in process["counters"].items():
        assert re.fullmatch("[a-z][a-z0-9_]*", name), name
        assert isinstance(value, int)' || fail "names"
verbena ps --counters >"$work/text"
grep -qE "^$client +rping +packets_in +[1-9]" "$work/text" || fail "no line: $(cat "$work/text")"
if awk '$4 == "0"' "$work/text" | grep .; then fail "a counter that is 0 is listed"; fi

# The client must count a packet with a wrong ICRC that is sent to its own QP.
qpn=$(verbena ps --json | python3 -c '
import json, sys
print([q["qpn"] for p in json.load(sys.stdin)["processes"] if p["pid"] == '$client' for q in p["qps"]][0])')
python3 -c '
import socket, struct, sys
out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
out.sendto(struct.pack("!BBHII", 4, 0, 0xffff, int(sys.argv[1]), 0) + bytes(8), ("127.0.0.1", 4791))' "$qpn"
wait_counter $client udp_in_wrong_icrc 1

# During an outage of the network, probes and timeouts must be counted.  After the outage, retransmissions must be
# counted.
ip link set lo down
wait_counter any probes 1
wait_counter any timeouts 1
ip link set lo up
wait_counter any retransmissions 1

# The counters of a stopped program can be read, and do not change.
stop_process $client
before=$(counter $client packets_out)
[ "$before" -gt 0 ] || fail "the counters of a stopped program are not shown"
[ "$(counter $client packets_out)" -eq "$before" ] || fail "a counter of a stopped program has changed"
kill -CONT $client

# A REJ must be counted by its reason at the sender and at the receiver, which have the same agent here.
if verbena run -- timeout 20 rping -c -a 127.0.0.1 -p 9 -C 1 >"$work/rejected" 2>&1; then fail "connected to port 9"; fi
at_least agent cm_rej_sent_8_invalid_service_id 1 || fail "the REJ is not counted: $(verbena ps --counters)"
at_least agent cm_rej_received_8_invalid_service_id 1 || fail "the received REJ is not counted"
kill $client $server
