#!/bin/bash
# One capture records several programs in several processes.  The capture must have all of their packets and the
# connection messages of the agent, in order of time.
. "$(dirname "$0")/lib.sh"
need rping tshark python3

rounds=60
cat >"$work/pairs" <<'E'
for port in 7001 7002 7003; do rping -s -a 127.0.0.1 -p $port -C $ROUNDS -S 3000 & done
for port in 7001 7002 7003; do
  ( # This subshell starts a client again until its server listens.
    for try in $(seq 200); do
      rping -c -a 127.0.0.1 -p $port -C $ROUNDS -S 3000 >/dev/null 2>&1 && exit 0
      sleep 0.05
    done
    exit 1 ) &
  clients+=($!)
done
for client in ${clients[@]}; do wait $client || exit 1; done
wait
E
ROUNDS=$rounds verbena run --pcap "$work/all.pcapng" -- timeout 90 bash "$work/pairs" >"$work/out" 2>&1 ||
  fail "the programs: $(cat "$work/out")"
capture_has_ended() { verbena agent status --json | grep -q '"captures": 0'; }
until_true 20 capture_has_ended || fail "the agent has not ended the capture"
status=$(verbena agent status --json)
grep -q '"capture_dropped": 0' <<<"$status" || fail "packets were not recorded: $status"

tshark -r "$work/all.pcapng" --disable-protocol rpcordma -T fields -e frame.time_epoch \
  -e infiniband.bth.opcode -e infiniband.bth.destqp -e infiniband.bth.psn \
  -e infiniband.mad.attributeid >"$work/packets" 2>"$work/errors"
if grep -q 'cut short' "$work/errors"; then fail "the file is cut short"; fi
python3 - "$work/packets" $rounds <<'E' || fail "the capture is not complete and in order"
import collections, sys

REQ, REP, RTU, DREQ, DREP = 0x10, 0x13, 0x14, 0x15, 0x16
READ = 0x0c
last, late, packets = 0.0, 0, 0
cm = collections.Counter()
requests = collections.defaultdict(dict)  # by destination QP: operation by PSN
for line in open(sys.argv[1]):
    time, opcode, qp, psn, attribute = line.rstrip("\n").split("\t")
    packets += 1
    late += float(time) < last  # a program may lose the processor between the clock and its record
    last = max(last, float(time))
    opcode, qp, psn = int(opcode, 0), int(qp, 0), int(psn, 0)
    if qp == 1:
        cm[int(attribute, 0)] += 1
    elif opcode <= READ:  # RC requests
        requests[qp][psn] = opcode
assert late * 100 <= packets, f"{late} of {packets} packets are not in order of time"
# There are three connections.  There may be more REQs, because a REQ that comes before the server listens is rejected.
for message in (REQ, REP, RTU, DREQ, DREP):
    assert cm[message] >= 3, f"{cm}: too few of {message:#x}"
assert len(requests) == 6, f"data of {len(requests)} QPs, not of 6"
for qp, by_psn in requests.items():
    # The PSNs of the requests are consecutive, modulo 2^24.  Only a READ takes several PSNs, one for each packet of its
    # response: at most three for 3000 bytes.  The first request is the one with no other request just before it.
    psns = sorted(by_psn)
    begin = next(p for p in psns if all((p - n) % (1 << 24) not in by_psn for n in range(1, 5)))
    psns.sort(key=lambda p: (p - begin) % (1 << 24))
    for one, next_one in zip(psns, psns[1:]):
        step = (next_one - one) % (1 << 24)
        assert step == 1 or (by_psn[one] == READ and step <= 3), f"QP {qp:#x}: a request is missing after PSN {one}"
    assert len(psns) >= int(sys.argv[2]), f"QP {qp:#x}: {len(psns)} packets"
print(sum(map(len, requests.values())), "requests,", sum(cm.values()), "CM messages")
E
