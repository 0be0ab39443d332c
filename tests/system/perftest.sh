#!/bin/bash
# Runs both ends of each program ib_* of Debian's perftest on this host.  The programs exchange addresses by TCP or by
# the RDMA CM (-R), and run with the options that change how queues are used.
. "$(dirname "$0")/lib.sh"
need ib_send_bw ib_send_lat ib_write_bw ib_write_lat ib_read_bw ib_read_lat ib_atomic_bw ib_atomic_lat ip ss

listens_tcp() { ss -tlnH "sport = :$1" | grep -q .; }

# perftest's server opens its TCP port before it listens with the RDMA CM.  The client's retry after a REJ does not work
# in 4.5-0.17 (fixed by perftest's commit 3d9d8d0), so this test makes the client wait for the listener.
port=18700
run_pair() {  # run_pair PROGRAM ARGUMENT...: runs a server and its client
  local server
  port=$((port + 1))
  start run -- timeout 250 "$@" -F -p "$port" >"$work/server" 2>&1 &
  server=$!
  local environment=()
  case " $* " in
    *" -R "*)
      wait_listening "$port"
      await_listener "$port"
      environment=("${await_listener_environment[@]}")
      ;;
    *) until_true 20 listens_tcp "$port" || fail "$*: no server: $(tail -3 "$work/server")" ;;
  esac
  verbena run -- env "${environment[@]}" timeout 250 "$@" -F -p "$port" 10.99.0.1 >"$work/client" 2>&1 ||
    fail "$*: the client: $(tail -3 "$work/client")"
  wait $server || fail "$*: the server's exit $?: $(tail -3 "$work/server")"
  # The second last line has the results: the size, the number of iterations, the measurements.  On a busy machine
  # perftest may write "inf", because it could not measure the frequency of the processor's clock.
  tail -2 "$work/client" | head -1 | grep -qE '^ *[0-9]+ +[0-9]+ +([0-9.]+|inf)' ||
    fail "$*: no figures: $(tail -3 "$work/client")"
  echo "$*: ok"
}

ip addr add 10.99.0.1/24 dev lo
index=$(verbena run -- ibv_devinfo -v | sed -n 's/^[[:space:]]*GID\[ *\([0-9]*\)\]:[[:space:]]*::ffff:10.99.0.1.*/\1/p')
[ -n "$index" ] || fail "no GID of 10.99.0.1"

# Each program first measures the processor's clock for half a second.  So CI runs each program, exchange, transport and
# use of queues at least once, and scripts/soak (VB_THOROUGH) runs all combinations.
all=${VB_THOROUGH:-}
# is_skipped_for MEASURE: succeeds if the loop is at MEASURE (lat or bw), and not all combinations are to run.
is_skipped_for() { [ -z "$all" ] && [ "$measure" = "$1" ]; }

# UD and UC do not send lost messages again, but perftest waits for all messages.  So all must fit into the socket's
# buffer.
few=(-n 20 -s 1000)

for operation in send write read; do
  for measure in lat bw; do
    run_pair ib_${operation}_$measure -x "$index" -n 200
    is_skipped_for bw || run_pair ib_${operation}_$measure -R -n 200
  done
done
run_pair ib_send_lat -x "$index" -c UD "${few[@]}"
run_pair ib_send_bw -x "$index" -n 200 -e
run_pair ib_send_lat -x "$index" -n 200 --use-srq
if [ -n "$all" ]; then
  run_pair ib_send_bw -x "$index" -c UD "${few[@]}"
  run_pair ib_send_lat -x "$index" -n 200 -e
  run_pair ib_send_bw -x "$index" -n 200 --use-srq
fi
run_pair ib_send_bw -x "$index" -n 200 -q 16
run_pair ib_send_bw -x "$index" -n 200 -q 4 --use-srq
run_pair ib_write_bw -x "$index" -n 200 -q 16 -b
run_pair ib_send_bw -x "$index" -n 20 -a
run_pair ib_send_bw -x "$index" -n 200 -t 16 -I 64
run_pair ib_read_bw -x "$index" -n 200 -o 4
run_pair ib_send_bw -x "$index" -D 1
for measure in lat bw; do
  is_skipped_for bw || run_pair ib_atomic_$measure -x "$index" -n 200 -A FETCH_AND_ADD
  is_skipped_for lat || run_pair ib_atomic_$measure -x "$index" -n 200 -A CMP_AND_SWAP
  is_skipped_for bw || run_pair ib_atomic_$measure -R -n 200
  is_skipped_for bw || run_pair ib_send_$measure -x "$index" -c UC "${few[@]}"
  is_skipped_for lat || run_pair ib_write_$measure -x "$index" -n 200 -c UC
done
