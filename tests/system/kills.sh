#!/bin/bash
# Kills a client or a server at a random moment with kill -9.  Some of them have a forked child that lives on.  The
# other side must be told within 2 s, nothing may hang, and no process, socket or file may be left.  VB_ROUNDS sets the
# number of rounds of each kind (default 6), and VB_SEED the moments; a failure prints the seed.  The test sets no
# timeout, because scripts/soak runs many rounds.
. "$(dirname "$0")/lib.sh"
need rping ss
programs=$VB_PREFIX/tests/programs
rounds=${VB_ROUNDS:-6}
seed=${VB_SEED:-$((RANDOM * 32768 + RANDOM))}
RANDOM=$seed
echo "VB_SEED=$seed, $rounds rounds of each kind"

kind= round=
fail_round() { fail "VB_SEED=$seed, $kind, round $round: $*; server: $(tail -3 "$work/server"); client: $(tail -3 "$work/client")"; }

export VERBENA_IDLE=3
# This sleep chooses the moment of the kill.
random_moment() { sleep "0.$(printf %03d $((RANDOM % 400)))"; }
milliseconds_since() { echo $((($(date +%s%N) - $1) / 1000000)); }

start_server() {
  case $kind in
    *rping*) start run -- rping -s >"$work/server" 2>&1 & port=7174 ;;
    *server-with-child) start run -- "$programs/echo" 7601 child >"$work/server" 2>&1 & port=7601 ;;
    *) start run -- "$programs/echo" 7601 >"$work/server" 2>&1 & port=7601 ;;
  esac
  server=$!
}
start_client() {
  case $kind in
    *rping*) start run -- rping -c -a 127.0.0.1 -C 100000000 -v >"$work/client" 2>&1 & ;;
    *client-with-child) start run -- "$programs/forks" 7601 outlive >"$work/client" 2>&1 < <(exec sleep 100) & ;;
    *) start run -- "$programs/echo" 7601 0 >"$work/client" 2>&1 & ;;
  esac
  client=$!
}
# Succeeds if the connection existed when the victim died.  Without it, the other side may still be at any earlier step.
connected() { grep -qsaE '^(connected|here|child|ping data)' "$work/client" "$work/server"; }
children() { sed -sn 's/^child //p' "$work/server" "$work/client" 2>/dev/null || true; }

# The echo server goes on after a client's death.  Its output shows that it was told.
server_heard() { ! grep -qs '^here' "$work/server" || grep -qE '^(gone|lost)' "$work/server"; }

# rping has a fault (rping.c, err3).  If DISCONNECTED comes before its main thread has seen ESTABLISHED, rping waits for
# a completion that never comes, and hangs with any RDMA stack.  The test accepts this, because rping was told.
client_heard() { gone "$client" || grep -qsa '^wait for CONNECTED state 10$' "$work/client"; }

for kind in rping-client rping-server client server client-with-child server-with-child; do
  for round in $(seq "$rounds"); do
    rm -f "$work/server" "$work/client"  # the output of the last round
    start_server
    wait_listening $port
    start_client
    random_moment
    limit_ms=2000
    connected || limit_ms=10000  # without a connection, the other side may only just begin
    case $kind in
      *client*) victim=$client other=$server ;;
      *) victim=$server other=$client ;;
    esac
    start_time=$(date +%s%N)
    kill -9 "$victim"
    wait "$victim" 2>/dev/null || true
    case $kind in
      rping-client) grep -qsa 'ping data' "$work/client" && { until_true 12 gone "$other" || fail_round "the server does not end"; } ;;
      *client*) until_true 12 server_heard || fail_round "the server does not hear" ;;
      *) until_true 12 client_heard || fail_round "the client does not end" ;;
    esac || true
    elapsed_ms=$(milliseconds_since "$start_time")
    [ "$elapsed_ms" -lt $limit_ms ] || fail_round "the other side heard after $elapsed_ms ms"
    for pid in $other $(children); do kill -9 "$pid" 2>/dev/null || true; done
    wait "$other" 2>/dev/null || true
  done
  echo "$kind: ok"
done

until_true 15 no_agent || fail "VB_SEED=$seed: the agent is still there: $(verbena agent status)"
check_nothing_left
