#!/bin/bash
# ctest: PLAIN
# UCX, libfabric and uDAPL must run unmodified between nodes of a simulated InfiniBand subnet: through one switch and
# through three switches, as root and as an ordinary user.  They must find the nodes' IPoIB interfaces.
# The test is PLAIN because `fabric up` starts OpenSM without the sanitizer's runtime, which must be preloaded into it.
source "$VB_SOURCE/tests/system/lib.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm ucx_perftest fi_pingpong fi_info dapltest ibv_rc_pingpong ib_send_bw ib_write_bw rping ss setpriv python3

chmod 755 "$work"
cat >"$work/net" <<'END'
Switch	8 "Left"
[1]	"Hca1"[1]
[2]	"Hca2"[1]
[3]	"Middle"[1]

Switch	8 "Middle"
[1]	"Left"[3]
[2]	"Right"[3]

Switch	8 "Right"
[1]	"Hca3"[1]
[3]	"Middle"[2]

Hca	2 "Hca1"
[1]	"Left"[1]

Hca	1 "Hca2"
[1]	"Left"[2]

Hca	1 "Hca3"
[1]	"Right"[1]
END
on() { verbena run --fabric line --node "$1" --verbose "${@:2}"; }
start_on() { start run --fabric line --node "$1" --verbose "${@:2}"; }
listens_tcp() { ss -ltnH "sport = :$1" | grep -q .; }
# start_fabric: starts the fabric, and waits until programs on its nodes can connect to one another.
start_fabric() {
  local node
  verbena fabric up "$work/net" --name line >"$work/up" 2>&1 || fail "the fabric does not come up: $(cat "$work/up")"
  for node in Hca1 Hca2 Hca3; do
    until_true 30 is_member $node --fabric line ||
      fail "$node joins no broadcast group: $(verbena sa groups --fabric line --node $node)"
  done
}
listens() { VERBENA_FABRIC=line VERBENA_NODE=$1 verbena ps | grep -q "listening.*:$2\b"; }

# ---- interfaces
interfaces() {
  on Hca1 -- "$VB_PREFIX/tests/programs/interfaces" >"$work/interfaces" 2>"$work/err" || fail "interfaces: $(cat "$work/err")"
}
# expect_interface PATTERN: fails unless a line of the program's output matches.
expect_interface() { grep -qE "^$1\$" "$work/interfaces" || fail "no interface '$1': $(cat "$work/interfaces")"; }
check_interfaces() {
  interfaces
  # The link-layer address consists of the QP number of IPoIB and the port's GID.
  expect_interface 'ib0 up running multicast hardware type 32 address 00000002fe80[0-9a-f]{28}'
  expect_interface 'ib1 up multicast hardware type 32 address 00000002fe80[0-9a-f]{28}'  # this port has no cable
  expect_interface 'ib0 10.0.0.1 mask 255.255.0.0'
  expect_interface 'ib0 fd00::1'
  expect_interface 'ib1 10.1.0.1 mask 255.255.0.0'
  expect_interface 'lo 127.0.0.1 mask 255.0.0.0'
  ! grep -vE '^(lo|ib[01]) ' "$work/interfaces" || fail "Hca1 has foreign interfaces"
  names=$(on Hca2 -- python3 -c 'import socket; print([name for _, name in socket.if_nameindex()])')
  [ "$names" = "['lo', 'ib0']" ] || fail "Python finds $names"
  echo "interfaces: ok"
}

# run_pair WHAT SERVER_NODE CLIENT_NODE: runs the command in the variable "server" on SERVER_NODE.  When the command in
# "ready" succeeds, runs the command in "client" on CLIENT_NODE.  Both must succeed.
run_pair() {
  start_on "$2" "${server[@]}" >"$work/server" 2>&1 &
  local pid=$!
  until_true 20 "${ready[@]}" || fail "$1: the server: $(cat "$work/server")"
  on "$3" "${client[@]}" >"$work/client" 2>&1 ||
    fail "$1: exit $?: $(tail -5 "$work/client"); server: $(tail -5 "$work/server")"
  wait $pid || fail "$1: the server: $(tail -5 "$work/server")"
}

# Runs UCX with its reliable connections (rc_v) and with its datagrams (ud_v).  rc_v uses rc_verbs, and ud_verbs to set
# connections up.  UCX looks for devices in the file system, so it needs --sysfs.
ucx() {  # ucx CLIENT_NODE: runs UCX between Hca1 and the node
  local transport test size
  ready=(listens_tcp 13337)
  for transport in rc_v ud_v; do
    for test in tag_lat tag_bw ucp_get ucp_fadd; do
      size=8
      [ $test != tag_bw ] || size=100000
      server=(--sysfs -- env "UCX_TLS=$transport,self" timeout 60 ucx_perftest)
      client=("${server[@]}" -t $test -s $size -n 300 -w 10 127.0.0.1)
      run_pair "UCX, $transport, $test" Hca1 "$1"
      grep -q '^Final: *300 ' "$work/client" || fail "$transport, $test: $(cat "$work/client")"
      ! grep -q 'ERROR\|WARN' "$work/client" "$work/server" || fail "$transport, $test: $(cat "$work/client" "$work/server")"
    done
    echo "UCX between Hca1 and $1 by $transport: ok"
  done
}

# Runs libfabric's connected end points (by the RDMA CM), reliable datagrams over connected end points, and datagrams.
# The programs exchange their addresses over this machine's loopback.  fi_pingpong verifies the data that it receives.
libfabric() {  # libfabric CLIENT_NODE: runs fi_pingpong between Hca1 and the node
  local type size
  ready=(listens_tcp 47592)
  for type in msg:64 msg:65536 rdm:65536 dgram:1024; do
    size=${type#*:} type=${type%:*}
    server=(-- timeout 60 fi_pingpong -p verbs -e "$type" -S "$size" -I 20 -c)
    client=("${server[@]}" 127.0.0.1)
    run_pair "libfabric, $type, $size" Hca1 "$1"
    grep -qE '^[0-9]+[kmg]? +20 +=20 ' "$work/client" || fail "$type, $size: $(cat "$work/client")"
    ! grep -qi 'error' "$work/client" "$work/server" || fail "$type, $size: $(cat "$work/client" "$work/server")"
  done
  echo "libfabric between Hca1 and $1: ok"
}

# dapltest exits with 0 in any case, so this function reads its output.
dapl() {  # dapl CLIENT_NODE: runs tests against the server on Hca1
  local out=$work/client
  export DAT_OVERRIDE=$work/dat.$1
  for what in "T -i 100 -t 2 -w 2 -V client SR 256 server RW 2048 4 server RR 1024 1 server SR 256" \
    "P -i 1024 -m b RW 4096 2" "P -i 200 -m p -p 16 RR 4096 1"; do
    # shellcheck disable=SC2086
    on "$1" -- timeout 60 dapltest -T "${what%% *}" -D verbena -s 10.0.0.1 ${what#* } >"$out" 2>&1 ||
      fail "dapltest $what: exit $?: $(tail -5 "$out")"
    grep -qE -- '----- (Stats|Test completed successfully)|--- Statistics ---' "$out" || fail "dapltest $what: $(cat "$out")"
    ! grep -iE 'error|could not|cannot connect|bad connection|test failed|retrying|err:' "$out" || fail "dapltest $what"
  done
  echo "dapltest between Hca1 and $1: ok"
}
start_dapl() {
  local node
  for node in Hca1 Hca2 Hca3; do
    echo "verbena u2.0 nonthreadsafe default libdaplofa.so.2 dapl.2.0 \"10.0.0.${node#Hca} 0\" \"\"" >"$work/dat.$node"
  done
  DAT_OVERRIDE=$work/dat.Hca1 start_on Hca1 -- dapltest -T S -D verbena >"$work/dapl" 2>&1 &
  dapl_server=$!
  until_true 20 grep -q "Service Point Ready" "$work/dapl" || fail "dapltest's server: $(cat "$work/dapl")"
}
stop_dapl() {
  DAT_OVERRIDE=$work/dat.Hca2 on Hca2 -- timeout 60 dapltest -T Q -s 10.0.0.1 -D verbena >"$work/quit" 2>&1 ||
    fail "dapltest -T Q: $(cat "$work/quit")"
  wait $dapl_server || fail "dapltest's server ends with $?: $(tail -5 "$work/dapl")"
}

# Runs perftest and ibv_rc_pingpong, which exchange LIDs by TCP, and rping, which uses the RDMA CM.
perftest_and_rping() {  # perftest_and_rping CLIENT_NODE
  port=$((port + 1))
  ready=(listens_tcp $port)
  for program in "ib_write_bw -F -n 200" "ib_send_bw -F -c UC -n 200" "ib_send_bw -F -c UD -n 100 -s 1024" "ibv_rc_pingpong -n 200"; do
    # shellcheck disable=SC2206
    server=(-- timeout 60 $program -p $port) client=(-- timeout 60 $program -p $port 127.0.0.1)
    run_pair "$program" Hca1 "$1"
  done
  ready=(listens Hca1 7174) server=(-- timeout 60 rping -s -C 10 -V) client=(-- timeout 60 rping -c -a 10.0.0.1 -C 10 -V)
  run_pair "rping" Hca1 "$1"
  echo "perftest and rping between Hca1 and $1: ok"
}

port=18700
run_all() {
  start_fabric
  check_interfaces
  start_dapl
  for client_node in Hca2 Hca3; do
    ucx $client_node
    libfabric $client_node
    dapl $client_node
    perftest_and_rping $client_node
  done
  stop_dapl
  verbena fabric down line >"$work/down" || fail "the fabric does not go down"
}

# Root runs all programs.  Then an ordinary user without capabilities runs some programs in a separate fabric.
if [ "${1:-}" = ordinary ]; then
  [ "$(id -u)" -eq 1000 ] || fail "not an ordinary user"
  grep -q '^CapEff:[[:space:]]*0*$' <(LD_PRELOAD='' cat /proc/self/status) || fail "the user has capabilities"
  start_fabric
  check_interfaces
  ucx Hca3
  libfabric Hca3
  perftest_and_rping Hca3
  verbena fabric down line >"$work/down" || fail "the fabric does not go down"
  echo "an ordinary user: ok"
  exit
fi
run_all
ordinary=(setpriv --reuid 1000 --regid 1000 --clear-groups)
"${ordinary[@]}" true 2>/dev/null || skip "no second user here"
"${ordinary[@]}" bash "$0" ordinary
