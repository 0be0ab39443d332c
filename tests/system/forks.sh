#!/bin/bash
# Programs with connections fork.  Nothing that a child does may disturb its parent's connections.  If the parent dies,
# its peer must notice it, even if the child still runs.
. "$(dirname "$0")/lib.sh"
need tshark
programs=$VB_PREFIX/tests/programs
[ -x "$programs/forks" ] || fail "no $programs/forks: it is built with the tests"

start run -- "$programs/echo" 7600 >"$work/server" 2>&1 &
server=$!
wait_listening 7600

run_scenario() {  # run_scenario NAME [OPTION...]: runs the part NAME of forks.c, with options of `verbena run`
  local name=$1
  shift
  verbena run "$@" -- timeout 100 "$programs/forks" 7600 "$name" >"$work/$name" 2>&1 ||
    fail "$name: exit $?: $(tail -5 "$work/$name") server: $(tail -2 "$work/server")"
  grep -q "nothing is disturbed" "$work/$name" || fail "$name: $(tail -5 "$work/$name")"
}

# The capture must have the DREQ that the parent sends when it ends.  The end of a child must not end the connection.
run_scenario ends --pcap "$work/ends.pcapng"
[ "$(grep -c 'exit handler' "$work/ends")" -eq 10 ] || fail "not 10 exit handlers ran: $(cat "$work/ends")"
tshark -r "$work/ends.pcapng" -Y 'infiniband.mad.attributeid == 0x0015' 2>/dev/null | grep . >/dev/null ||
  fail "the capture has no DREQ"
run_scenario posts
run_scenario device
run_scenario execs
! grep inherited "$work/execs" || fail "descriptors survive exec"
# GCC 12's AddressSanitizer forks while another thread holds a lock of its allocator.  The child's first
# malloc() then waits for ever.
[ -n "${VB_PRELOAD:-}" ] || run_scenario threads
! gone $server || fail "the server has ended: $(tail -5 "$work/server")"

# check_descriptors CHILD NAME: fails if the child holds a socket, a pidfd, an epoll descriptor or memory of Verbena.
# It may hold the descriptors of channels, which are eventfds.
check_descriptors() {
  local fd
  for fd in /proc/"$1"/fd/*; do
    case $(readlink "$fd") in
      socket:* | anon_inode:*pidfd* | anon_inode:*eventpoll* | *verbena*)
        fail "$2: child $1 holds $(readlink "$fd") from $(ls -l /proc/"$1"/fd)" ;;
    esac
  done
}

for name in outlive outlive_raw; do
  for death in exit kill; do
    rm -f "$work/$name"  # the output of the previous round
    mkfifo "$work/tell"
    gone_before=$(grep -c '^gone' "$work/server" || true)
    start run -- "$programs/forks" 7600 "$name" <"$work/tell" >"$work/$name" 2>&1 &
    parent=$!
    exec 9>"$work/tell"
    child_made() { grep -qs '^child [0-9]' "$work/$name"; }
    until_true 30 child_made || fail "$name: no child: $(cat "$work/$name")"
    child=$(sed -n 's/^child //p' "$work/$name")
    [ $name = outlive_raw ] || check_descriptors "$child" "$name"
    if [ $death = exit ]; then echo x >&9; else kill -9 $parent; fi
    exec 9>&-
    wait $parent 2>/dev/null || true
    start_time=$(date +%s%N)
    server_noticed() { [ "$(grep -c '^gone' "$work/server" || true)" -gt "$gone_before" ]; }
    until_true 10 server_noticed || fail "$name, $death: the server does not notice it"
    elapsed_ms=$((($(date +%s%N) - start_time) / 1000000))
    [ $elapsed_ms -lt 5000 ] || fail "$name, $death: the server noticed it after $elapsed_ms ms"
    ! gone "$child" || fail "$name, $death: the child has ended, too"
    # The descriptors that the child holds must not disturb other programs.
    verbena run -- timeout 60 "$programs/echo" 7600 20 >/dev/null || fail "$name, $death: no new connection"
    kill -9 "$child"
    rm "$work/tell"
  done
done
kill $server
