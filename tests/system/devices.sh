#!/bin/bash
# There must be one device.  Its port must be active on Ethernet, and its GIDs must be the addresses of the host.
. "$(dirname "$0")/lib.sh"
need ibv_devices ibv_devinfo ip

verbena run -- ibv_devices >"$work/devices"
grep -q '^ *verbena0[[:space:]]' "$work/devices" || fail "no verbena0: $(cat "$work/devices")"
[ "$(grep -c '[0-9a-f]\{16\}$' "$work/devices")" -eq 1 ] || fail "not one device"

verbena run -- ibv_devinfo -v >"$work/info"
for line in 'state:.*PORT_ACTIVE' 'link_layer:.*Ethernet' 'active_mtu:.*4096' 'phys_port_cnt:.*1'; do
  grep -q "$line" "$work/info" || fail "ibv_devinfo has no '$line': $(cat "$work/info")"
done
grep -q 'GID\[.*::ffff:127.0.0.1' "$work/info" || fail "127.0.0.1 is no GID"
if ip -6 addr show dev lo | grep -q '::1/128'; then
  grep -Eq 'GID\[.*(::1|0000:0000:0000:0000:0000:0000:0000:0001)' "$work/info" || fail "::1 is no GID"
fi

# An address that is added while the agent runs must become a GID at a new index.
before=$(grep -c 'GID\[' "$work/info")
ip addr add 10.99.0.1/32 dev lo
new_gid() { verbena run -- ibv_devinfo -v | grep -q 'GID\[.*::ffff:10.99.0.1'; }
until_true 30 new_gid || fail "a new address did not become a GID"
[ "$(verbena run -- ibv_devinfo -v | grep -c 'GID\[')" -eq $((before + 1)) ] || fail "GIDs are missing"
