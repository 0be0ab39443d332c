#!/bin/bash
# ctest: TIMEOUT 120
# Tests the InfiniBand CM for programs (tests/api/endpoints.cc), between two hosts with two links: service ids with
# masks, private data of each message, a rejection with its information, alternate paths in REQ and LAP, disconnects on
# the remaining path, peers that connect to each other, and services of datagrams (SIDR).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
program=$VB_PREFIX/tests/api/endpoints
service=0x10000000abcd0000

make_hosts 1500
second_link

# begin NAME HOST ARGUMENT...: starts the program on a host.  Its output goes to $work/NAME.  The descriptor ${to[NAME]}
# writes to its input.
declare -A to pid
begin() {
  local name=$1 host=$2 fd
  shift 2
  mkfifo "$work/$name.in"
  (
    for fd in "${to[@]}"; do exec {fd}>&-; done
    LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
      exec nsenter --net="/proc/${host_pid[$host]}/ns/net" "$program" "$@"
  ) <"$work/$name.in" >"$work/$name" 2>&1 &
  pid[$name]=$!
  exec {fd}>"$work/$name.in"
  to[$name]=$fd
}
send_command() { echo "$2" >&"${to[$1]}" || fail "$1 has ended: $(cat "$work/$1")"; }
has_printed() { gone "${pid[$1]}" || grep -qxF -- "$2" "$work/$1"; }
hears() {
  until_true 20 has_printed "$1" "$2" && grep -qxF -- "$2" "$work/$1" ||
    fail "$1 does not say '$2': $(cat "$work"/{server,"$1"})"
}
ends() {
  wait "${pid[$1]}" || fail "$1: exit $?: $(cat "$work/$1" "$work/server")"
  local fd=${to[$1]}
  exec {fd}>&-
  unset "to[$1]"
}

begin server b serve $service
hears server listening

begin refused a ask 10.77.0.2 0x10000000abcd0007 refuse
hears refused "rejected 12 'not here' ::ffff:10.99.99.99"
ends refused
grep -qx "request 0x10000000abcd0007 'refuse'" "$work/server" || fail "$(cat "$work/server")"
begin stranger a ask 10.77.0.2 0x10000000abcd0100 hello
hears stranger "rejected 8 '' ::"
ends stranger
echo "service ids and refusals: ok"

# The connection has two paths from the beginning.  The first one fails while messages flow.
begin both a ask ::ffff:10.77.0.2 $service both 10.78.0.1 10.78.0.2
hears both "accepted 'welcome' both"
hears server "established 'ready'"
send_command both "rounds 50"
hears both "rounds 50"
send_command both cross
hears both crossing
line "both loss=100"
hears both migrated
hears both crossed
hears server migrated
send_command both "bye enough"
hears server "disconnected 0 'enough'"
hears both "disconnected 0 ''"
ends both
line both
echo "an alternate path in the REQ: ok"

# The connection has one path.  An alternate path is offered and refused, and then offered again and accepted.  Then the
# connection moves to it, and a third offer makes the first path the alternate one.
begin one a ask 10.77.0.2 $service single 10.78.0.1 10.78.0.2
hears one "accepted 'welcome'"
send_command one "rounds 20"
hears one "rounds 20"
send_command one "offer 10.78.0.1 10.78.0.2 no"
hears server "offered ::ffff:10.78.0.2 ::ffff:10.78.0.1 'no'"
hears one "answered 3 'no need'"
send_command one "offer 10.99.0.1 10.78.0.2 nowhere"
hears one "no offer: the alternate path begins at no address of the device"
send_command one "offer 10.78.0.1 10.78.0.2 please"
hears one "answered 0 ''"
send_command one "rounds 21"
hears one "rounds 21"
send_command one migrate
hears one migrated
send_command one "rounds 22"
hears one "rounds 22"
send_command one "offer 10.77.0.1 10.77.0.2 back"
until_true 20 eval '[ "$(grep -c "^answered 0" "$work/one")" = 2 ]' || fail "$(cat "$work/one" "$work/server")"
send_command one "rounds 23"
hears one "rounds 23"
# The first path fails and the program on host a is killed.  Its peer must be told at once, by the remaining path.
line "both loss=100"
kill -9 "${pid[one]}"
heard_twice() { [ "$(grep -c "^disconnected" "$work/server")" = 2 ]; }
until_true 5 heard_twice || fail "the server does not hear of the death by the alternate path: $(cat "$work/server")"
line both
echo "an alternate path by LAP: ok"

begin red a meet 10.77.0.1 10.77.0.2 0x2000000000000001
hears red connecting
begin blue b meet 10.77.0.2 10.77.0.1 0x2000000000000001
both_have_met() { grep -q ", met" "$work/red" && grep -q ", met" "$work/blue"; }
until_true 20 both_have_met || fail "the peers do not connect to each other: $(cat "$work/red" "$work/blue")"
active=red passive=blue
grep -q "^active" "$work/red" || active=blue passive=red
declare -A ip_of=([red]=10.77.0.1 [blue]=10.77.0.2)
grep -qx "active, met '${ip_of[$passive]}'" "$work/$active" || fail "$(cat "$work/$active")"
grep -qx "passive, met '${ip_of[$active]}'" "$work/$passive" || fail "$(cat "$work/$passive")"
hears $active "rounds 10"
send_command $active "bye friend"
hears $passive "disconnected 0 'friend'"
ends $active
ends $passive
echo "peer to peer: ok"

begin teller b tell 0x3000000000000001
hears teller listening
begin pupil a learn 10.77.0.2 0x3000000000000001 hello
ends pupil
qpn=$(sed -n "s/^request 0x3000000000000001 'hello' for //p" "$work/teller")
[ -n "$qpn" ] && grep -qx "told $qpn 0x1234567 'welcome'" "$work/pupil" || fail "$(cat "$work/teller" "$work/pupil")"
begin unwelcome a learn 10.77.0.2 0x3000000000000001 refuse
hears unwelcome "event 7 2"
ends unwelcome
begin lost a learn 10.77.0.2 0x3000000000000002 hello
hears lost "event 7 1"
ends lost
echo "services of datagrams: ok"
