#!/bin/bash
# An independent program reads a capture of packets that travel by LIDs.
set -eu
command -v tshark >/dev/null || { echo "tshark is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

"$1" "$work/lids.pcapng" || fail "the capture was not written"
tshark -r "$work/lids.pcapng" >"$work/text" 2>"$work/errors" || fail "tshark: $(cat "$work/errors")"
if grep -iE 'malformed|unknown' "$work/text"; then fail "malformed or unknown packets"; fi
# Each of host 1's two QPs sends one message to host 2, first without a GRH and then with one.  Host 2 acknowledges the
# RC message.  The fields are the LIDs, the service level, the next header of the LRH, the opcode and the queue pair.
cat >"$work/expected" <<'END'
16 32 3 2 4 256
16 32 3 2 100 512
32 16 3 2 17 256
16 32 3 3 4 256
16 32 3 3 100 512
32 16 3 3 17 256
END
tshark -r "$work/lids.pcapng" -T fields -E separator=' ' -e infiniband.lrh.slid -e infiniband.lrh.dlid \
  -e infiniband.lrh.sl -e infiniband.lrh.lnh -e infiniband.bth.opcode -e infiniband.bth.destqp 2>/dev/null |
  while read -r slid dlid rest; do
    read -r sl lnh opcode qp <<<"$rest"
    echo $((slid)) $((dlid)) $((sl)) $((lnh)) $((opcode)) $((qp))
  done >"$work/fields"
diff "$work/expected" "$work/fields" || fail "other packets than expected"
[ "$(tshark -r "$work/lids.pcapng" -T fields -e infiniband.grh.dgid 2>/dev/null | sort -u | tr '\n' ' ')" = \
  " fe80::1 fe80::2 " ] || fail "other GIDs than expected"
# tshark finds the variant CRC in the last two bytes of each packet.
[ "$(tshark -r "$work/lids.pcapng" -T fields -e infiniband.variant.crc 2>/dev/null | grep -c .)" -eq 6 ] ||
  fail "not every packet has a variant CRC"
