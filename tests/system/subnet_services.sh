#!/bin/bash
# Programs on nodes of an InfiniBand subnet must find services in the subnet administration of Debian's OpenSM (RAI_SA).
# They must be able to set the paths of their ids (RDMA_OPTION_IB_PATH).
source "$VB_SOURCE/tests/system/lib.sh"
source "$VB_SOURCE/tests/system/lib_managers.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm saquery python3
program=$VB_PREFIX/tests/programs/subnet_services

verbena fabric make --hosts 3 --infiniband >"$work/net"
verbena fabric up "$work/net" --name services --sm none >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
on() { verbena run --node "$1" --verbose -- timeout 30 "${@:2}"; }
start_on() { start run --node "$1" --verbose -- timeout 60 "${@:2}"; }
begin_manager host3 5
wait_active host1 host2 host3
# services NODE ARGUMENT...: prints the number of services that `verbena sa services` finds.
services() { verbena sa services "${@:2}" --node "$1" --json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["services"]))'; }

: >"$work/server" >"$work/registered"
start_on host1 "$program" serve 7101 2 >"$work/server" 2>&1 &
server=$!
listens() { grep -q listens "$work/server"; }
until_true 20 listens || fail "the server does not listen: $(cat "$work/server")"
start sa register store 0x1061bbd --lease 30 --node host1 >"$work/registered" 2>&1 &
registration=$!
is_registered() { grep -q '^registered$' "$work/registered"; }
until_true 20 is_registered || fail "the service is not registered: $(cat "$work/registered")"
[ "$(services host2 store)" = 1 ] && [ "$(services host2 --id 0x1061bbd)" = 1 ] ||
  fail "the service is not found: $(verbena sa services --node host2)"
verbena sa services --node host2 >"$work/list"
grep -q '^store  *0x0000000001061bbd  *fe80::.*  *0xffff  *30 s' "$work/list" || fail "the list: $(cat "$work/list")"
on host3 saquery -S >"$work/out" 2>&1 || fail "saquery: $(cat "$work/out")"
grep -q '0x0000000001061bbd' "$work/out" || fail "saquery does not show the service: $(cat "$work/out")"

on host2 "$program" connect store >"$work/out" 2>&1 || fail "a service by its name: $(cat "$work/out")"
grep -q '^service 0x1061bbd at fe80::.* pkey 0xffff$' "$work/out" && grep -qx connected "$work/out" || fail "$(cat "$work/out")"
on host3 "$program" sync 0x1061bbd >"$work/out" 2>&1 || fail "a service by its id, synchronous: $(cat "$work/out")"
grep -qx connected "$work/out" || fail "$(cat "$work/out")"
wait $server || fail "the server: $(cat "$work/server")"
on host3 "$program" lookup store >"$work/out" 2>&1 || fail "rdma_getaddrinfo: $(cat "$work/out")"
grep -q '^service 0x1061bbd at fe80::' "$work/out" || fail "rdma_getaddrinfo: $(cat "$work/out")"
echo "services: ok"

# ---- a second registration of the same service is refused until the first one ends
if verbena sa register other 0x1061bbd --node host1 >"$work/out" 2>&1; then fail "a service is registered twice"; fi
grep -q 'a program of this host has registered the service' "$work/out" || fail "$(cat "$work/out")"
kill $registration
wait $registration 2>/dev/null || true
service_is_removed() { [ "$(services host2 store)" = 0 ]; }
until_true 20 service_is_removed || fail "the service outlives its program"
if on host2 "$program" connect store >"$work/out" 2>&1; then fail "a service is found that has been removed"; fi
grep -q 'RDMA_CM_EVENT_ADDRINFO_ERROR' "$work/out" || fail "$(cat "$work/out")"
on host2 "$program" lookup store >"$work/out" 2>&1 && grep -qx 'not found' "$work/out" || fail "$(cat "$work/out")"
echo "the end of a service: ok"

if verbena sa register store 7 >"$work/out" 2>&1; then fail "a service is registered without an agent"; fi
grep -q '^verbena sa register: no agent is running' "$work/out" || fail "$(cat "$work/out")"

# ---- a path that the program has chosen
start_on host1 rping -s -p 7300 -P >"$work/server" 2>&1 &
server=$!
listens() { verbena fabric show services >/dev/null && VERBENA_FABRIC=services VERBENA_NODE=host1 verbena ps | grep -q 'listening.*:7300\b'; }
until_true 20 listens || fail "rping does not listen: $(cat "$work/server")"
on host2 "$program" path 10.0.0.1 7300 >"$work/out" 2>&1 || fail "a path that the program has set: $(cat "$work/out")"
grep -qx connected "$work/out" || fail "$(cat "$work/out")"
kill $server
wait $server 2>/dev/null || true
echo "paths: ok"

end_manager host3
verbena fabric down services >"$work/down" || fail "the fabric does not go down"
check_nothing_left
