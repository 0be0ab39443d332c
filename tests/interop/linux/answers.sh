#!/bin/bash
# Runs calls that may fail, on Verbena and on Linux, and compares the results.  Compares the attributes of the devices
# with the table of differences in docs/conformance.md; VB_RECORD=1 writes the table.  Also checks that a listener at a
# loopback address accepts connections from other hosts, on Verbena and on Linux.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need rping

make_host a
make_line "/proc/${host_pid[a]}/ns/net" "guest:$work/guest.b.line"
configure_host a 1500
pack_verbena tests/programs/{answers,refusals,device_attributes}
make_guest b --also "$work/verbena.cpio"
configure_guest b 1500

# compare PROGRAM ARGUMENT ARGUMENT -- ARGUMENT ARGUMENT: runs the program on Verbena with the first two arguments, and on
# Linux with the last two.  The outputs must be the same.
compare() {
  run_program a "$VB_PREFIX/tests/programs/$1" "$2" "$3" >"$work/ours" 2>&1 || fail "ours: $(cat "$work/ours")"
  run_program b "/verbena/tests/programs/$1" "$5" "$6" >"$work/linux" 2>&1 || fail "Linux: $(cat "$work/linux")"
  diff "$work/linux" "$work/ours" >"$work/diff" || fail "$1: < Linux, > Verbena: $(cat "$work/diff")"
  cat "$work/linux"
}
compare answers 10.77.0.2 fd77::2 -- 10.77.0.1 fd77::1
compare refusals 10.77.0.2 10.77.0.1 -- 10.77.0.1 10.77.0.2

run_program a "$VB_PREFIX/tests/programs/device_attributes" >"$work/ours" 2>&1 || fail "ours: $(cat "$work/ours")"
run_program b /verbena/tests/programs/device_attributes >"$work/linux" 2>&1 || fail "Linux: $(cat "$work/linux")"
python3 "$VB_SOURCE/tests/interop/linux/attributes_table.py" "$work/ours" "$work/linux" "$VB_SOURCE/docs/conformance.md" \
  ${VB_RECORD:+--record} || fail "the table in docs/conformance.md differs (VB_RECORD=1 writes it)"
echo "the device's attributes differ from Linux as documented"

for server in a b; do
  client=$([ $server = a ] && echo b || echo a)
  start_program $server rping -s -a 127.0.0.1 -C 5 -V >"$work/server" 2>&1 &
  pid=$!
  until_true 30 listens $server 127.0.0.1 7174 || fail "no listener on $server: $(cat "$work/server")"
  run_program $client rping -c -a "$(address_of $server 4)" -C 5 -V >"$work/client" 2>&1 ||
    ended_by_own_race $client "$work/client" || fail "client on $client: $(tail -4 "$work/client")"
  wait $pid || ended_by_own_race $server "$work/server" || fail "server on $server: $(tail -4 "$work/server")"
  echo "a listener at 127.0.0.1 of $server accepts a connection from $client: ok"
done
check_captures
