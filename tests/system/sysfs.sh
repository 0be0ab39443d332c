#!/bin/bash
# ctest: TIMEOUT 60
# With --sysfs a program finds the device where the kernel would show it; nobody else does.
. "$(dirname "$0")/lib.sh"
need setpriv ip

ip addr add 10.99.0.1/24 dev lo
cat >"$work/look" <<'E2'
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
[ -c /dev/infiniband/uverbs0 ] && [ -r /dev/infiniband/uverbs0 ] && [ -w /dev/infiniband/uverbs0 ]
# All else is as it was.
[ "$(readlink -f /sys/class/net/lo)" = /sys/devices/virtual/net/lo ]
[ -c /dev/null ] && echo x >/dev/null && [ -d /dev/shm ] && [ -r /dev/urandom ]
ibv_devinfo | grep -q verbena0
id -u
E2

with_sysfs() { verbena run --sysfs -- "$@"; }
[ "$(with_sysfs sh "$work/look")" = 0 ] || fail "the files are not there, or not right"
[ ! -e /sys/class/infiniband/verbena0 ] || fail "they are there outside, too"
[ ! -e /dev/infiniband/uverbs0 ] || fail "the node is there outside, too"

# Without the right to mount.
as() { LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 "$@"; }
bounded=(setpriv --bounding-set -sys_admin --inh-caps -sys_admin --ambient-caps -all)
[ "$(as "${bounded[@]}" "$VB_PREFIX/bin/verbena" run --sysfs -- sh "$work/look")" = 0 ] ||
  fail "without rights the files are not there"
# As a user that is not root, who has an agent of its own.
verbena agent stop >/dev/null
[ "$(as unshare --user --map-user=1000 --map-group=1000 "$VB_PREFIX/bin/verbena" run --sysfs -- sh "$work/look")" = 1000 ] ||
  fail "another user finds no files, or is not itself"
echo "the device is where the kernel would show it"
