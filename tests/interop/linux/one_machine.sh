#!/bin/bash
# Runs Verbena on a machine where the kernel's soft-RoCE has port 4791.  Verbena's errors must name the kernel module.
# After the module is removed, Verbena must get the port, and connect to the soft-RoCE of another machine.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

verbena_on_b() { on b env LD_LIBRARY_PATH=/lib /verbena/bin/verbena "$@"; }

make_linux_pair_with_verbena 1500
if verbena_on_b run -- rping -c -a "$(address_of a 4)" -C 1 >"$work/refused" 2>&1; then fail "connected without port 4791"; fi
verbena_on_b doctor >"$work/doctor" 2>&1 || true
for output in "$work/refused" "$work/doctor"; do
  grep -q "4791" "$output" && grep -q "rdma_rxe" "$output" || fail "the message does not name the owner of the port: $(cat "$output")"
done
grep 4791 "$work/refused"
on b rmmod rdma_rxe
port_open() { verbena_on_b run -- ibv_devinfo | grep PORT_ACTIVE >/dev/null; }
until_true 20 port_open || fail "the port does not open: $(verbena_on_b doctor)"

address=$(address_of a 4)
start_program a rping -s -a "$address" -C 10 -V >"$work/server" 2>&1 &
server=$!
until_true 30 is_listening_on a 7174 || fail "no server: $(cat "$work/server")"
verbena_on_b run -- rping -c -a "$address" -C 10 -V >"$work/client" 2>&1 || fail "client: $(cat "$work/client" "$work/server")"
wait $server || fail "server: $(cat "$work/server")"
echo "Verbena after the kernel's device was removed: ok"
check_captures
