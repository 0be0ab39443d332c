#!/bin/bash
# Runs the examples of the C++ API between Verbena and Linux, with the server on either side.  The same binaries run on
# Verbena's device, and on Linux's soft-RoCE with the system's libibverbs (`verbena run --adapter`).
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need cmp

make_pair_with_api
# start_example HOST NAME ARGUMENT...: becomes the process of an example, on Verbena's device (host a) or on the adapter
# of the Linux machine (host b).  The caller runs it in the background (&) or in a subshell.
start_example() {
  local host=$1 name=$2
  shift 2
  if [ "$host" = a ]; then
    start_program a "$VB_PREFIX/examples/$name" "$@"
  else
    start_program b /verbena/bin/verbena run --adapter any -- "/verbena/examples/$name" "$@"
  fi
}
run_example() { (start_example "$@"); }
listens_here() {  # listens_here HOST PORT: succeeds if a program on the host listens on the port of the RDMA CM
  if [ "$1" = a ]; then
    on a verbena ps | grep "listening.*:$2\b" >/dev/null
  else
    on b rdma resource show cm_id | grep "LISTEN.*:$2\b" >/dev/null
  fi
}
serve() {  # serve HOST PORT NAME ARGUMENT...: starts an example as server, and waits until it listens
  local host=$1 port=$2
  shift 2
  start_example "$host" "$@" >"$work/server" 2>&1 &
  server_pid=$!
  until_true 30 listens_here "$host" "$port" || fail "no $1 on $host: $(cat "$work/server")"
}
run_client() {  # run_client HOST NAME ARGUMENT...
  run_example "$@" >"$work/client" 2>&1 ||
    fail "$2 on $1: exit $?: $(tail -5 "$work/client"); server: $(tail -5 "$work/server")"
}
wait_for_server() {
  wait $server_pid || fail "$1's server: exit $?: $(tail -5 "$work/server"); client: $(cat "$work/client")"
}

for server in a b; do
  other=$([ $server = a ] && echo b || echo a)
  server_address=$(address_of $server 4)
  serve $server 7601 pingpong 7601
  run_client $other pingpong 7601 "$server_address"
  wait_for_server pingpong
  grep -q '^1000 rounds of 64 bytes' "$work/client" || fail "pingpong: $(cat "$work/client")"

  serve $server 7603 kvstore serve 7603 one=1 "three=drei Worte"
  run_client $other kvstore get "$server_address" 7603 three one
  [ "$(xargs <"$work/client")" = "three=drei Worte one=1" ] || fail "kvstore: $(cat "$work/client")"
  on $server kill "$(on $server pidof kvstore)"
  wait $server_pid 2>/dev/null || true
  echo "server $server: pingpong, kvstore: ok"
done

# Copies a file from host a to the Linux machine, and back.
head -c 2000001 /dev/urandom >"$work/file"
serve a 7602 rcopy offer "$work/file" 7602
run_client b rcopy fetch 10.77.0.1 7602 /tmp/copy
wait_for_server rcopy
serve b 7604 rcopy offer /tmp/copy 7604
run_client a rcopy fetch 10.77.0.2 7604 "$work/copy"
wait_for_server rcopy
cmp "$work/file" "$work/copy" || fail "the copy differs from the file"
echo "rcopy there and back: ok"

# Lets both hosts chat by multicast.
group=239.77.3.1
typed_there=/tmp/typed
mkfifo "$work/typed"
start_example a chat $group 10.77.0.1 ours <"$work/typed" >"$work/ours" 2>&1 &
ours=$!
exec {typed}>"$work/typed"
start_program b sh -c "mkfifo $typed_there; cat $typed_there | /verbena/bin/verbena run --adapter any -- \
  /verbena/examples/chat $group 10.77.0.2 linux >/tmp/heard 2>&1 || cat /tmp/heard" >"$work/linux" 2>&1 &
linux=$!
is_member() { on "$1" ip maddress show dev eth0 | grep "inet *$group" >/dev/null; }
until_true 20 is_member a || fail "ours: $(cat "$work/ours")"
until_true 30 is_member b || fail "linux: $(cat "$work/linux" "$work/ours")"
has_received() {  # has_received HOST LINE
  if [ "$1" = a ]; then grep -qxF "$2" "$work/ours"; else on b grep -qxF "$2" /tmp/heard; fi
}
until_true 20 has_received b "linux is here" || fail "linux: $(on b cat /tmp/heard)"
echo "hello" >&$typed
until_true 20 has_received b "ours: hello" || fail "linux has received: $(on b cat /tmp/heard)"
# A chat ends at the end of its input.  So the input of the chat on host b stays open until its message has arrived.
on b mkfifo /tmp/heard_here
start_program b sh -c "exec >$typed_there; echo 'hello, too'; cat /tmp/heard_here" &
typist=$!
until_true 20 has_received a "linux: hello, too" || fail "ours has received: $(cat "$work/ours")"
on b sh -c 'echo >/tmp/heard_here'
wait $typist
exec {typed}>&-
wait $ours || fail "ours: $(cat "$work/ours")"
wait $linux || fail "linux: $(cat "$work/linux")"
[ ! -s "$work/linux" ] || fail "linux: $(cat "$work/linux")"
echo "chat: ok"

# Tests features that no example uses: shared receive queues, memory windows, and the errors for features that an
# adapter does not have.
run_program b /verbena/bin/verbena run --adapter rxe0 -- /verbena/tests/api/live adapter >"$work/live" 2>&1 ||
  fail "live: exit $?: $(cat "$work/live")"
[ "$(cat "$work/live")" = "all good" ] || fail "live: $(cat "$work/live")"
echo "features that the examples do not use: ok"

# Checks the errors for an adapter and a port that do not exist.
! on b env VERBENA_ADAPTER=mlx5_0 LD_LIBRARY_PATH=/verbena/lib/verbena/adapter /verbena/examples/pingpong 7609 >"$work/client" 2>&1 ||
  fail "pingpong runs on an adapter that does not exist"
grep -q "no usable RDMA adapter 'mlx5_0': rxe0" "$work/client" || fail "$(cat "$work/client")"
! on b /verbena/bin/verbena run --adapter rxe0/2 -- /verbena/examples/pingpong 7609 >"$work/client" 2>&1 || fail "pingpong runs on a port that does not exist"
grep -q "rxe0 has no port 2 (its last port is 1)" "$work/client" || fail "$(cat "$work/client")"
check_captures
