#!/bin/bash
# Runs every operation between Verbena and Linux, and compares all data (tests/programs/matrix.c).  Each side is the
# requester in turn, at path MTU 1024 and 4096.  Then only RC operations run, on a line that loses packets.  The results
# must be those of the table in docs/conformance.md; VB_RECORD=1 writes the table.  Also tests vendor options in REQ,
# REP and REJ (ece.c).
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

make_host a
make_line "/proc/${host_pid[a]}/ns/net" "guest:$work/guest.b.line"
configure_host a 9000
python3 "$VB_SOURCE/tests/interop/linux/image.py" pack "$work/matrix.cpio" "$VB_PREFIX" tests/programs/{matrix,ece} ||
  fail "image.py pack"
make_guest b --also "$work/matrix.cpio"
configure_guest b 9000
# program HOST [NAME]: prints the path of a test program on the host.
program() { is_linux "$1" && echo /verbena/tests/programs/"${2:-matrix}" || echo "$VB_PREFIX/tests/programs/${2:-matrix}"; }

port=7700
# run_operations REQUESTER MTU [rc]: runs the operations with host REQUESTER as requester.  MTU is a value of enum
# ibv_mtu.  With rc, for a line that loses packets, runs only RC operations.  Appends the results to $work/all, each
# after REQUESTER and MTU.
run_operations() {
  local requester=$1 mtu=$2 responder pid code=0
  shift 2
  port=$((port + 1))
  responder=$([ "$requester" = a ] && echo b || echo a)
  start_program "$responder" "$(program "$responder")" answer "$(address_of "$responder" 4)" $port "$mtu" >"$work/responder" 2>&1 &
  pid=$!
  until_true 30 is_listening_on "$responder" tcp:$port || fail "the program on $responder does not listen: $(cat "$work/responder")"
  run_program "$requester" "$(program "$requester")" ask "$(address_of "$requester" 4)" $port "$mtu" "$(address_of "$responder" 4)" "$@" \
    >"$work/requester" 2>&1 || code=$?
  [ $code -eq 0 ] || fail "requester $requester, MTU $mtu, $*: exit $code: $(grep -v good "$work/requester"); the responder: $(cat "$work/responder")"
  wait $pid || fail "responder $responder, MTU $mtu: $(cat "$work/responder")"
  sed "s/^/$requester $mtu${1:+-loss} /" "$work/requester" >>"$work/all"
}
for requester in a b; do
  for mtu in 3 5; do run_operations $requester $mtu; done
done
for server in a b; do
  client=$([ $server = a ] && echo b || echo a)
  address=$(address_of $server 4)
  run_pair "ece, server $server" $server 7500 "$(program $server ece)" answer @ 7500 -- "$(program $client ece)" ask @ 7500
done
line "both loss=2"
for requester in a b; do
  for mtu in 3 5; do run_operations $requester $mtu rc; done
done
line_counts | grep -q "lost=[1-9].*lost=[1-9]" || fail "the line lost nothing: $(line_counts)"
echo "no operation failed on a line that loses packets: $(line_counts)"
python3 "$VB_SOURCE/tests/interop/linux/matrix_table.py" "$work/all" "$VB_SOURCE/docs/conformance.md" \
  ${VB_RECORD:+--record} || fail "the table in docs/conformance.md differs (VB_RECORD=1 writes it)"
check_captures
