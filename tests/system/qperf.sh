#!/bin/bash
# ctest: PLAIN
# Runs qperf's tests of RC between two ends on this host.  qperf supports RoCE only by the RDMA CM (-cm1), and uses the
# RDMA CM only for RC.  Its other tests use LIDs, which do not exist on RoCE.
. "$(dirname "$0")/lib.sh"
need qperf ip ss

ip addr add 10.99.0.1/24 dev lo
start run --verbose -- qperf >"$work/server" 2>&1 &
server=$!
listens() { gone $server || ss -tlnH "sport = :19765" | grep -q .; }
until_true 20 listens || fail "qperf: no server: $(tail -3 "$work/server")"

# Each test takes a second, so CI runs a few of them, and scripts/soak (VB_THOROUGH) runs all.
tests=(rc_bi_bw rc_rdma_write_poll_lat ver_rc_fetch_add)
[ -z "${VB_THOROUGH:-}" ] || tests+=(rc_lat rc_bw rc_rdma_read_bw rc_rdma_read_lat rc_rdma_write_lat rc_rdma_write_bw rc_compare_swap_mr
  rc_fetch_add_mr ver_rc_compare_swap)
for kind in "${tests[@]}"; do
  verbena run -- timeout 60 qperf -cm1 -t 1 -m 1000 10.99.0.1 "$kind" >"$work/client" 2>&1 ||
    fail "qperf $kind: exit $?: $(cat "$work/client"); server: $(tail -3 "$work/server")"
  grep -qE '^ +(latency|bw|msg_rate) += +[0-9.]+ ' "$work/client" || fail "qperf $kind: $(cat "$work/client")"
  echo "$kind:$(tail -1 "$work/client")"
done

# A test that uses LIDs must fail, and one of the ends must say why.
! verbena run --verbose -- timeout 60 qperf -t 1 10.99.0.1 uc_lat >"$work/client" 2>&1 || fail "qperf connects by LIDs"
says_why() { grep -qs '^verbena: qperf\[[0-9]*\]: refused: an Ethernet port needs a global address' "$work/client" "$work/server"; }
until_true 20 says_why || fail "qperf uc_lat does not say why: $(cat "$work/client" "$work/server")"
echo "a path of LIDs is refused with the reason"
kill $server
