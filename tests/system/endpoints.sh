#!/bin/bash
# Tests the InfiniBand CM for programs (tests/api/endpoints.cc), between two hosts with two links: service ids with
# masks, private data of each message, a rejection with its information, alternate paths in REQ and LAP, disconnects on
# the remaining path, peers that connect to each other, and services of datagrams (SIDR).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
program=$VB_PREFIX/tests/api/endpoints
service=0x10000000abcd0000

make_hosts 1500
second_link

# begin NAME HOST ARGUMENT...: starts the program on a host.  Its output goes to $work/NAME.  Its input is a pipe, and
# ${input_of[NAME]} is the descriptor of the write end.
declare -A input_of pid
begin() {
  local name=$1 host=$2 fd
  shift 2
  mkfifo "$work/$name.in"
  (
    for fd in "${input_of[@]}"; do exec {fd}>&-; done
    LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
      exec nsenter --net="/proc/${host_pid[$host]}/ns/net" "$program" "$@"
  ) <"$work/$name.in" >"$work/$name" 2>&1 &
  pid[$name]=$!
  exec {fd}>"$work/$name.in"
  input_of[$name]=$fd
}
send_command() { echo "$2" >&"${input_of[$1]}" || fail "$1 has ended: $(cat "$work/$1")"; }
has_printed() { gone "${pid[$1]}" || grep -qxF -- "$2" "$work/$1"; }
# wait_printed NAME LINE: waits until the program NAME has printed the line.
wait_printed() {
  until_true 20 has_printed "$1" "$2" && grep -qxF -- "$2" "$work/$1" ||
    fail "$1 does not print '$2': $(cat "$work"/{server,"$1"})"
}
# wait_end NAME: waits until the program NAME has ended, which must be with exit code 0.
wait_end() {
  wait "${pid[$1]}" || fail "$1: exit $?: $(cat "$work/$1" "$work/server")"
  local fd=${input_of[$1]}
  exec {fd}>&-
  unset "input_of[$1]"
}

begin server b serve $service
wait_printed server listening

begin refused a ask 10.77.0.2 0x10000000abcd0007 refuse
wait_printed refused "rejected 12 'not here' ::ffff:10.99.99.99"
wait_end refused
grep -qx "request 0x10000000abcd0007 'refuse'" "$work/server" || fail "$(cat "$work/server")"
begin unknown a ask 10.77.0.2 0x10000000abcd0100 hello
wait_printed unknown "rejected 8 '' ::"
wait_end unknown
echo "service ids and refusals: ok"

# The connection has two paths from the beginning.  The first one fails while messages flow.
begin two_paths a ask ::ffff:10.77.0.2 $service both 10.78.0.1 10.78.0.2
wait_printed two_paths "accepted 'welcome' both"
wait_printed server "established 'ready'"
send_command two_paths "rounds 50"
wait_printed two_paths "rounds 50"
send_command two_paths cross
wait_printed two_paths crossing
line "both loss=100"
wait_printed two_paths migrated
wait_printed two_paths crossed
wait_printed server migrated
send_command two_paths "bye enough"
wait_printed server "disconnected 0 'enough'"
wait_printed two_paths "disconnected 0 ''"
wait_end two_paths
line both
echo "an alternate path in the REQ: ok"

# The connection has one path.  The server refuses the first offer of an alternate path.  The second offer is not sent,
# because host a does not have the address.  The server accepts the third offer.  Then the connection migrates to this
# path, and the fourth offer makes its first path the alternate path.
begin one_path a ask 10.77.0.2 $service single 10.78.0.1 10.78.0.2
wait_printed one_path "accepted 'welcome'"
send_command one_path "rounds 20"
wait_printed one_path "rounds 20"
send_command one_path "offer 10.78.0.1 10.78.0.2 no"
wait_printed server "offered ::ffff:10.78.0.2 ::ffff:10.78.0.1 'no'"
wait_printed one_path "answered 3 'no need'"
send_command one_path "offer 10.99.0.1 10.78.0.2 nowhere"
wait_printed one_path "no offer: the device does not have the source address of the alternate path"
send_command one_path "offer 10.78.0.1 10.78.0.2 please"
wait_printed one_path "answered 0 ''"
send_command one_path "rounds 21"
wait_printed one_path "rounds 21"
send_command one_path migrate
wait_printed one_path migrated
send_command one_path "rounds 22"
wait_printed one_path "rounds 22"
send_command one_path "offer 10.77.0.1 10.77.0.2 back"
until_true 20 eval '[ "$(grep -c "^answered 0" "$work/one_path")" = 2 ]' || fail "$(cat "$work/one_path" "$work/server")"
send_command one_path "rounds 23"
wait_printed one_path "rounds 23"
# The first path fails, and the program on host a is killed.  The disconnect must reach its peer by the remaining path.
line "both loss=100"
kill -9 "${pid[one_path]}"
has_second_disconnect() { [ "$(grep -c "^disconnected" "$work/server")" = 2 ]; }
until_true 20 has_second_disconnect || fail "the server gets no disconnect by the alternate path: $(cat "$work/server")"
line both
echo "an alternate path by LAP: ok"

begin red a meet 10.77.0.1 10.77.0.2 0x2000000000000001
wait_printed red connecting
begin blue b meet 10.77.0.2 10.77.0.1 0x2000000000000001
both_have_met() { grep -q ", met" "$work/red" && grep -q ", met" "$work/blue"; }
until_true 20 both_have_met || fail "the peers do not connect to each other: $(cat "$work/red" "$work/blue")"
active=red passive=blue
grep -q "^active" "$work/red" || active=blue passive=red
declare -A ip_of=([red]=10.77.0.1 [blue]=10.77.0.2)
grep -qx "active, met '${ip_of[$passive]}'" "$work/$active" || fail "$(cat "$work/$active")"
grep -qx "passive, met '${ip_of[$active]}'" "$work/$passive" || fail "$(cat "$work/$passive")"
wait_printed $active "rounds 10"
send_command $active "bye friend"
wait_printed $passive "disconnected 0 'friend'"
wait_end $active
wait_end $passive
echo "peer to peer: ok"

begin sidr_server b tell 0x3000000000000001
wait_printed sidr_server listening
begin sidr_client a learn 10.77.0.2 0x3000000000000001 hello
wait_end sidr_client
qpn=$(sed -n "s/^request 0x3000000000000001 'hello' for //p" "$work/sidr_server")
[ -n "$qpn" ] && grep -qx "told $qpn 0x1234567 'welcome'" "$work/sidr_client" || fail "$(cat "$work/sidr_server" "$work/sidr_client")"
begin sidr_refused a learn 10.77.0.2 0x3000000000000001 refuse
wait_printed sidr_refused "event 7 2"
wait_end sidr_refused
begin sidr_unknown a learn 10.77.0.2 0x3000000000000002 hello
wait_printed sidr_unknown "event 7 1"
wait_end sidr_unknown
echo "services of datagrams: ok"
