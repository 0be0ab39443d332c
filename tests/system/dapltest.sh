#!/bin/bash
# ctest: PLAIN
# Runs dapltest's tests of transactions, of several threads and end points, and of performance against one server, and
# its tests of limits without a server.  Also runs dtest and dtestx.  dapltest always exits with 0, so this test reads
# its output.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need dapltest dtest dtestx ip ss
runs=${VB_ROUNDS:-5}

# With Linux's own RDMA, dapltest needs the address of a device, which 127.0.0.1 is not.  So this test adds an address.
address=10.99.0.1
ip address add $address/32 dev lo
echo "verbena u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"$address 0\" \"\"" >"$work/dat.conf"
export DAT_OVERRIDE=$work/dat.conf

start run -- dapltest -T S -D verbena >"$work/server" 2>&1 &
server=$!
until_true 20 grep -q "Service Point Ready" "$work/server" || fail "the server is not ready: $(cat "$work/server")"

# run_client NAME TYPE ARGUMENT...: runs a client, which must print its statistics and report no error.
run_client() {
  local name=$1 out=$work/client
  shift
  verbena run -- timeout 60 dapltest -T "$1" -s $address -D verbena "${@:2}" >"$out" 2>&1 ||
    fail "$name: status $? (124: it hangs): $(tail -5 "$out"; verbena ps)"
  grep -qE -- '----- (Stats|Test completed successfully)|--- Statistics ---' "$out" ||
    fail "$name: no statistics: $(cat "$out")"
  ! grep -iE 'error|could not|cannot connect|bad connection|test failed|retrying|err:' "$out" ||
    fail "$name: it reports an error: $(cat "$out")"
  echo "$name: ok"
}

for ((i = 1; i <= runs; i++)); do
  run_client "transaction $i" T -i 100 -t 1 -w 1 client SR 256 server SR 256
done
run_client "transaction, 2 threads of 4 end points, verified" T -i 200 -t 2 -w 4 -P -V \
  client RW 4096 1 server RW 2048 4 server RR 1024 1 client RR 2048 1 \
  client SR 1024 3 -f server SR 256 3 -f
run_client "performance, RDMA WRITE" P -i 1024 -m b RW 4096 2
run_client "performance, RDMA READ" P -i 1024 -m p -p 16 RR 4096 1

verbena run -- timeout 60 dapltest -T L -D verbena -m 137 -w 8 limit_ia limit_pz limit_cno \
  limit_evd limit_ep limit_rsp limit_psp limit_lmr limit_rpost >"$work/limits" 2>&1 ||
  fail "limits: status $?: $(tail -5 "$work/limits")"
! grep -iE 'could not|cannot|error' "$work/limits" || fail "limits: $(cat "$work/limits")"
[ "$(grep -c "^Limitation Test" "$work/limits")" -ge 9 ] || fail "limits: $(cat "$work/limits")"
echo "limits: ok"

verbena run -- timeout 60 dapltest -T Q -s $address -D verbena >"$work/quit" 2>&1 ||
  fail "quit: status $?: $(cat "$work/quit")"
until_true 20 gone $server || fail "the server did not quit: $(tail -5 "$work/server")"
wait $server || fail "the server ended with $?"
echo "the server has quit"

# The other two programs test messages, RDMA both ways, and the extensions.  Their servers first tell the client their
# address, by TCP on port 15828, and only then listen for the connection.
offers_address() { ss -ltnH 'sport = :15828' | grep . >/dev/null; }
run_pair() {  # run_pair PORT TEXT COMMAND...: runs a server on PORT and its client, which must both print TEXT
  local port=$1 text=$2
  shift 2
  start run -- timeout 60 "$@" >"$work/server" 2>&1 &
  server=$!
  until_true 20 offers_address || fail "$*: $(cat "$work/server")"
  await_listener "$port"
  verbena run -- env "${await_listener_environment[@]}" timeout 60 "$@" -h $address >"$work/client" 2>&1 ||
    fail "$*: exit $?: $(tail -5 "$work/client")"
  wait $server || fail "$*: the server: exit $?: $(tail -5 "$work/server")"
  for side in client server; do grep -q "$text" "$work/$side" || fail "$*: $side: $(tail -5 "$work/$side")"; done
  echo "$*: ok"
}
run_pair 45248 'DAPL Test Complete. PASSED' dtest -P verbena -b 65536
run_pair 31112 'immed/atomic test PASSED' dtestx -P verbena
