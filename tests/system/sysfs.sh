#!/bin/bash
# With --sysfs a program must find the device where the kernel would show it.  Other programs must not see the device.
. "$(dirname "$0")/lib.sh"
need setpriv ip
verbena doctor | grep '^ok *run --sysfs' >/dev/null || skip "$(verbena doctor | grep -A1 'run --sysfs' || true)"

ip addr add 10.99.0.1/24 dev lo
cat >"$work/check_files" <<'E2'
set -eu
cd /sys/class/infiniband/verbena0
[ "$(cat ports/1/state)" = "4: ACTIVE" ]
[ "$(cat ports/1/link_layer)" = "Ethernet" ]
grep -qx '0000:0000:0000:0000:0000:ffff:0a63:0001' ports/1/gids/*
grep -qx lo ports/1/gid_attrs/ndevs/0
grep -qx 'RoCE v2' ports/1/gid_attrs/types/0
[ "$(ls device/net)" = lo ]
[ "$(cat device/net/lo/mtu)" -ge 1500 ]
[ "$(cat /sys/class/infiniband_verbs/uverbs0/ibdev)" = verbena0 ]
[ "$(cat hw_rev)" = 0x1 ]
grep -qxE '[0-9]+' ports/1/counters/port_xmit_data
grep -qxE '[0-9]+' ports/1/hw_counters/duplicate_request
[ -c /dev/infiniband/uverbs0 ] && [ -r /dev/infiniband/uverbs0 ] && [ -w /dev/infiniband/uverbs0 ]
# All other files must be unchanged.
[ "$(readlink -f /sys/class/net/lo)" = /sys/devices/virtual/net/lo ]
[ -c /dev/null ] && echo x >/dev/null && [ -d /dev/shm ] && [ -r /dev/urandom ]
ibv_devinfo | grep -q verbena0
id -u
E2

with_sysfs() { verbena run --sysfs -- "$@"; }
[ "$(with_sysfs sh "$work/check_files")" = 0 ] || fail "the files are missing or wrong"
[ ! -e /sys/class/infiniband/verbena0 ] || fail "the device is also visible without --sysfs"
[ ! -e /dev/infiniband/uverbs0 ] || fail "the device node is also visible without --sysfs"

# The counters must change while programs run.  The reader runs with --sysfs.  The programs that cause the traffic run
# without --sysfs, because the counters are those of the port.
mkfifo "$work/orders"
with_sysfs sh -c 'cd /sys/class/infiniband/verbena0/ports/1
  while read -r file; do cat "$file"; done' <"$work/orders" >"$work/values" &
reader=$!
exec 8>"$work/orders"
value() {  # value FILE: prints the value that the reader sees now
  local lines
  lines=$(wc -l <"$work/values")
  echo "$1" >&8
  has_new_line() { [ "$(wc -l <"$work/values")" -gt "$lines" ]; }
  until_true 30 has_new_line || fail "the reader does not read $1"
  tail -1 "$work/values"
}
reaches() { [ "$(value "$1")" -ge "$2" ]; }
start run -- rping -s -C 20 >"$work/server" 2>&1 &
server=$!
wait_listening 7174
sends_before=$(value hw_counters/rdma_sends) data_before=$(value counters/port_xmit_data)

start run -- rping -s -p 7175 >"$work/server2" 2>&1 &  # still runs when the other programs have ended
other=$!
verbena run -- rping -c -a 10.99.0.1 -C 20 >"$work/client" 2>&1 || fail "rping: $(cat "$work/client")"
wait $server || fail "rping -s: $(cat "$work/server")"
# 20 rounds of rping are 80 SENDs.  Each round also has a READ and a WRITE.
until_true 30 reaches hw_counters/rdma_sends $((sends_before + 80)) || fail "rdma_sends is $(value hw_counters/rdma_sends), and was $sends_before"
until_true 30 reaches hw_counters/rdma_recvs $((sends_before + 80)) || fail "rdma_recvs is $(value hw_counters/rdma_recvs)"
until_true 30 reaches counters/port_xmit_data $((data_before + 500)) || fail "port_xmit_data is $(value counters/port_xmit_data), and was $data_before"
# The two files are written one after the other, so they may differ for a moment.
counters_agree() { [ "$(value hw_counters/sent_pkts)" = "$(value counters/port_xmit_packets)" ]; }
until_true 30 counters_agree || fail "the counters differ"
until_true 30 reaches hw_counters/rcvd_pkts 160 || fail "rcvd_pkts is $(value hw_counters/rcvd_pkts)"
kill $other
exec 8>&-
wait $reader

# If a program that looks for devices in /sys runs without --sysfs, `run` must print one line that names the option.
count_hints() { grep -c 'verbena run --sysfs' "$work/hint" || true; }
ln -s "$(command -v sh)" "$work/ibstatus"
verbena run -- "$work/ibstatus" -c : 2>"$work/hint"
[ "$(count_hints)" -eq 1 ] || fail "the message does not name --sysfs: $(cat "$work/hint")"
verbena run --sysfs -- "$work/ibstatus" -c : 2>"$work/hint"
[ "$(count_hints)" -eq 0 ] || fail "the message appears although --sysfs is given: $(cat "$work/hint")"
verbena run -- sh -c : 2>"$work/hint"
[ "$(count_hints)" -eq 0 ] || fail "a shell needs no --sysfs: $(cat "$work/hint")"
if command -v ibstat >/dev/null; then
  # ibstat uses libibumad, which needs no files.
  for run in "verbena run --" with_sysfs; do
    $run ibstat >"$work/ibstat.out" 2>&1 || fail "$run ibstat: $(cat "$work/ibstat.out")"
    grep -q "CA 'verbena0'" "$work/ibstat.out" && grep -q 'State: Active' "$work/ibstat.out" &&
      grep -q 'Link layer: Ethernet' "$work/ibstat.out" ||
      fail "$run ibstat does not see the device: $(cat "$work/ibstat.out")"
  done
fi

# The files must also appear for a user without the right to mount (CAP_SYS_ADMIN).
with_preload() { LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 "$@"; }
bounded=(setpriv --bounding-set -sys_admin --inh-caps -sys_admin --ambient-caps -all)
[ "$(with_preload "${bounded[@]}" "$VB_PREFIX/bin/verbena" run --sysfs -- sh "$work/check_files")" = 0 ] ||
  fail "the files are missing for a user without rights"
# The files must also appear for another user, who is not root and has a separate agent.
verbena agent stop >/dev/null
[ "$(with_preload unshare --user --map-user=1000 --map-group=1000 "$VB_PREFIX/bin/verbena" run --sysfs -- sh "$work/check_files")" = 1000 ] ||
  fail "another user finds no files, or has another identity"
echo "the device is where the kernel would show it"
