#!/bin/bash
# Sends SIGSTOP, SIGCONT and SIGKILL to programs under `verbena run --sockets` and to the socket service at any moment
# of a transfer.  A program that was stopped must get all bytes, and no reader may sleep while bytes are unread.  The
# peer of a killed program must notice it.  The death of the service must harm no connection.  VB_ROUNDS sets the rounds
# of each kind (default 6).  VB_SEED determines the moments, and a failure prints it.  The test sets no timeout, because
# scripts/soak runs many rounds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need ss python3
stream=$VB_PREFIX/tests/programs/stream
rounds=${VB_ROUNDS:-6}
seed=${VB_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$seed
echo "VB_SEED=$seed, $rounds rounds of each kind"

kind= round=
fail_round() {
  fail "VB_SEED=$seed, $kind, round $round: $*; server: $(tail -3 "$work/server"); client: $(tail -3 "$work/client"); $(
    verbena sockets ls 2>&1)"
}
# sleep_random_time MS: sleeps for less than MS milliseconds, so that the next signal comes at a random moment.
sleep_random_time() { sleep "0.$(printf %03d $((RANDOM % $1)))"; }
port=20040
listens_tcp() { ss -Htln "sport = :$port" | grep -q .; }
# gone PID: succeeds if the process has ended, even if it is a zombie.
gone() { ! kill -0 "$1" 2>/dev/null || [ "$(awk '{print $3}' "/proc/$1/stat" 2>/dev/null)" = Z ]; }
both_gone() { gone "$server" && gone "$client"; }
service() { verbena sockets stat --json | python3 -c 'import json, sys; print((json.load(sys.stdin)["service"] or {"pid": 0})["pid"])'; }

# A forked child still runs after its parent is killed.  So the rounds that kill a program use only the first four
# modes.
modes=(threads poll epoll dup fork)
# start_both MEGABYTES COUNT: starts server and client, each in one of the first COUNT modes.
start_both() {
  local mode=${modes[RANDOM % $2]}
  port=$((port + 1))
  [ $port -lt 21000 ] || port=20041
  start run --sockets -- "$stream" serve $port "$1" $((RANDOM + 1)) "$mode" >"$work/server" 2>&1 &
  server=$!
  until_true 60 listens_tcp || fail_round "the server does not listen"
  mode=${modes[RANDOM % $2]}
  start run --sockets -- "$stream" call $port "$1" $((RANDOM + 1)) "$mode" >"$work/client" 2>&1 &
  client=$!
}
all_bytes_arrived() { grep -q 'bytes each way$' "$work/server" && grep -q 'bytes each way$' "$work/client"; }

for kind in stop kill-client kill-server kill-service stop-service; do
  for round in $(seq "$rounds"); do
    case $kind in
      stop)
        start_both 24 5
        for _ in $(seq 8); do
          victim=$server
          [ $((RANDOM % 2)) = 0 ] || victim=$client
          kill -STOP "$victim" 2>/dev/null || true
          sleep_random_time 60
          kill -CONT "$victim" 2>/dev/null || true
          sleep_random_time 40
        done
        until_true 30 both_gone || fail_round "the programs do not end"
        all_bytes_arrived || fail_round "not all bytes have arrived"
        ;;
      kill-client | kill-server)
        start_both 2000 4
        sleep_random_time 400
        case $kind in
          kill-client) victim=$client other=$server ;;
          kill-server) victim=$server other=$client ;;
        esac
        kill -KILL "$victim" 2>/dev/null || true
        wait "$victim" 2>/dev/null || true
        other_gone() { gone "$other"; }
        # If the client is killed before it has connected, the server still listens.  If the client has connected, the
        # server may end between these two commands.
        if [ $kind = kill-client ] && listens_tcp; then kill -KILL "$other" 2>/dev/null || true; fi
        until_true 10 other_gone || fail_round "the peer does not notice it"
        all_bytes_arrived && fail_round "a killed program has got all bytes"
        ;;
      kill-service)
        start_both 100 5
        sleep_random_time 400
        victim=$(service)
        [ "$victim" = 0 ] || kill -KILL "$victim" 2>/dev/null || true
        until_true 60 both_gone || fail_round "the programs do not end"
        all_bytes_arrived || fail_round "not all bytes have arrived"
        ;;
      stop-service)
        start_both 24 5
        victim=$(service)
        [ "$victim" = 0 ] || kill -STOP "$victim" 2>/dev/null || true
        until_true 30 both_gone || fail_round "the programs do not end"
        [ "$victim" = 0 ] || kill -CONT "$victim" 2>/dev/null || true
        all_bytes_arrived || fail_round "not all bytes have arrived"
        ;;
    esac
    wait "$server" "$client" 2>/dev/null || true
  done
  echo "$kind: ok"
done
[ -z "$(ls -A /dev/shm 2>/dev/null)" ] || fail "files remain in /dev/shm: $(ls -A /dev/shm)"
