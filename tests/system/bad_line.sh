#!/bin/bash
# ctest: TIMEOUT 900
# Programs run over a line with faults: first each kind of fault in one direction, then all kinds in both directions.
# VB_LINE_SEEDS sets the number of seeds for the second part.  Each seed determines the random faults, a program, an
# address family and an MTU.  Twelve seeds have all pairs of programs, families and MTUs.  VB_SEED=N runs one seed
# again.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need rping ucmatose rdma_client rdma_server ibv_rc_pingpong ibv_devinfo ss

programs=(rping ucmatose rdma_client ibv_rc_pingpong)
families=(4 6 local)
mtus=(1500 4200 9000)
all="loss=10 duplicate=10 reorder=20 corrupt=1 jitter=1"
slow="$all delay=100"

# run_failed TEXT...: fails the test.  The message begins with $what, which describes the run.
run_failed() { fail "$what: $*; $replay; $(line_counts)"; }
listens() { gone "$server" || on b verbena ps | grep -q "listening.*:$1\b"; }
listens_tcp() { gone "$server" || [ -n "$(on b ss -tlnH "sport = :18515")" ]; }
gid_index_of() {  # gid_index_of HOST FAMILY
  local address
  address=$(address_of "$1" "$2")
  case $2 in
    4) address=::ffff:$address ;;
    local) address=${address%\%*} ;;
  esac
  on "$1" verbena run -- ibv_devinfo -v | sed -n 's/^[[:space:]]*GID\[ *\([0-9]*\)\]:[[:space:]]*\([0-9a-f:.]*\).*/\1 \2/p' |
    awk -v gid="$address" '$2 == gid || $2 == gid ":" { print $1; exit }'
}
# run PROGRAM FAMILY MTU ROUNDS: runs a server and a client once.  It does not use MTU; set_mtu has set the interfaces.
run() {
  local rounds=$4 address server_command=() client_command=() events=() index
  address=$(address_of b "$2")
  case $1 in
    rping)
      server_command=(rping -s -a "$address" -C "$rounds" -S 10000 -V)
      client_command=(rping -c -a "$address" -C "$rounds" -S 10000 -V)
      ;;
    ucmatose)
      server_command=(ucmatose -c 5 -C "$rounds" -S 3000 -b "$address")
      client_command=(ucmatose -c 5 -C "$rounds" -S 3000 -s "$address")
      ;;
    rdma_client)
      server_command=(rdma_server -s "$address")
      client_command=(rdma_client -s "$address")
      ;;
    ibv_rc_pingpong)
      index=$(gid_index_of b "$2")
      # Both ends wait for completion events (-e) on a slow line, and otherwise with every second seed of this program.
      [ "$faults" != "$slow" ] && [ $((seed % 8)) -ne 7 ] || events=(-e)
      server_command=(ibv_rc_pingpong -g "$index" -n "$rounds" -s 20000 -c "${events[@]}")
      index=$(gid_index_of a "$2")
      client_command=(ibv_rc_pingpong -g "$index" -n "$rounds" -s 20000 -c "${events[@]}" "$(address_of b 4)")
      ;;
  esac
  start_on b verbena run -- timeout 120 "${server_command[@]}" >"$work/server" 2>&1 &
  server=$!
  case $1 in
    rping) until_true 20 listens 7174 ;;
    ibv_rc_pingpong) until_true 20 listens_tcp ;;
    *) until_true 20 listens 7471 ;;
  esac || run_failed "the server does not listen: $(tail -3 "$work/server")"
  local client_status=0 server_status=0
  on a verbena run -- timeout 120 "${client_command[@]}" >"$work/client" 2>&1 || client_status=$?
  wait "$server" || server_status=$?
  [ "$client_status" = 0 ] || has_all_data "$1" "$work/server" "$work/client" ||
    run_failed "${client_command[*]}: exit $client_status: $(tail -8 "$work/client")" \
      "(the server: $(tail -8 "$work/server"))"
  [ "$server_status" = 0 ] || has_all_data "$1" "$work/client" "$work/server" ||
    run_failed "${server_command[*]}: exit $server_status: $(tail -8 "$work/server")" \
      "(the client: $(tail -8 "$work/client"))"
}
# Succeeds if a failure is not caused by Verbena.  Each end of ibv_rc_pingpong exits as soon as it has received
# everything.  If the line loses the last acknowledgement of that end, no program sends the acknowledgement again.  Then
# the other end fails, as on any adapter.
has_all_data() {  # has_all_data PROGRAM OUTPUT-OF-FIRST-END OUTPUT-OF-FAILED-END
  [ "$1" = ibv_rc_pingpong ] && grep -q "iters in" "$2" &&
    grep -q "transport retry counter exceeded" "$3"
}
set_mtu() {
  on a ip link set eth0 mtu "$1"
  on b ip link set eth0 mtu "$1"
}
make_hosts 1500
replay="the line's seed is $line_seed"
if [ -z "${VB_SEED:-}" ]; then
  for faults in loss=2 loss=10 duplicate=10 reorder=20 corrupt=1 delay=100; do
    for direction in "a>b" "b>a"; do
      line "$direction $faults"
      what="$direction $faults"
      run rping 4 1500 "$([ $faults = delay=100 ] && echo 3 || echo 20)"
      line both
    done
    echo "$faults, in each direction: ok"
  done
fi

first=${VB_SEED:-1}
last=${VB_SEED:-${VB_LINE_SEEDS:-12}}
for ((seed = first; seed <= last; ++seed)); do
  program=${programs[seed % 4]}
  family=${families[seed % 3]}
  mtu=${mtus[seed / 4 % 3]}
  faults=$all rounds=10
  [ $((seed % 7)) -ne 0 ] || { faults=$slow rounds=3; }
  replay="replay with VB_SEED=$seed"
  line "seed $seed"
  set_mtu "$mtu"
  line "both $faults"
  what="seed $seed: $program, address family $family, MTU $mtu, '$faults'"
  start_time=$(date +%s%N)
  run "$program" "$family" "$mtu" "$rounds"
  echo "$what: ok in $((($(date +%s%N) - start_time) / 1000000)) ms"
done
