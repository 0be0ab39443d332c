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

# ---- run PROGRAM FAMILY MTU ROUNDS: one run of a server and a client; messages begin with $what
cannot() { fail "$what: $*; $replay; $(line_counts)"; }
listens() { gone "$server" || on b verbena ps | grep -q "listening.*:$1\b"; }
tcp_listens() { gone "$server" || [ -n "$(on b ss -tlnH "sport = :18515")" ]; }
gid_of() {  # gid_of HOST FAMILY
  local address
  address=$(address_of "$1" "$2")
  case $2 in
    4) address=::ffff:$address ;;
    local) address=${address%\%*} ;;
  esac
  on "$1" verbena run -- ibv_devinfo -v | sed -n 's/^[[:space:]]*GID\[ *\([0-9]*\)\]:[[:space:]]*\([0-9a-f:.]*\).*/\1 \2/p' |
    awk -v gid="$address" '$2 == gid || $2 == gid ":" { print $1; exit }'
}
run() {
  local rounds=$4 address serves=() asks=() waits=() index
  address=$(address_of b "$2")
  case $1 in
    rping)
      serves=(rping -s -a "$address" -C "$rounds" -S 10000 -V)
      asks=(rping -c -a "$address" -C "$rounds" -S 10000 -V)
      ;;
    ucmatose)
      serves=(ucmatose -c 5 -C "$rounds" -S 3000 -b "$address")
      asks=(ucmatose -c 5 -C "$rounds" -S 3000 -s "$address")
      ;;
    rdma_client)
      serves=(rdma_server -s "$address")
      asks=(rdma_client -s "$address")
      ;;
    ibv_rc_pingpong)
      index=$(gid_of b "$2")
      [ "$faults" != "$slow" ] && [ $((seed % 8)) -ne 7 ] || waits=(-e)  # sleeps on a slow line, and every other time
      serves=(ibv_rc_pingpong -g "$index" -n "$rounds" -s 20000 -c "${waits[@]}")
      index=$(gid_of a "$2")
      asks=(ibv_rc_pingpong -g "$index" -n "$rounds" -s 20000 -c "${waits[@]}" "$(address_of b 4)")
      ;;
  esac
  start_on b verbena run -- timeout 120 "${serves[@]}" >"$work/server" 2>&1 &
  server=$!
  case $1 in
    rping) until_true 20 listens 7174 ;;
    ibv_rc_pingpong) until_true 20 tcp_listens ;;
    *) until_true 20 listens 7471 ;;
  esac || cannot "the server does not listen: $(tail -3 "$work/server")"
  local asked=0 served=0
  on a verbena run -- timeout 120 "${asks[@]}" >"$work/client" 2>&1 || asked=$?
  wait "$server" || served=$?
  [ "$asked" = 0 ] || has_what_it_wants "$1" "$work/server" "$work/client" ||
    cannot "${asks[*]}: exit $asked: $(tail -8 "$work/client") (the server: $(tail -8 "$work/server"))"
  [ "$served" = 0 ] || has_what_it_wants "$1" "$work/client" "$work/server" ||
    cannot "${serves[*]}: exit $served: $(tail -8 "$work/server") (the client: $(tail -8 "$work/client"))"
}
# Succeeds if a failure is no fault of Verbena.  Each end of ibv_rc_pingpong exits as soon as it has received
# everything.  If the line has lost its last acknowledgement, nobody sends that again, and the other end fails, as on
# any adapter.
has_what_it_wants() {  # has_what_it_wants PROGRAM GONE LEFT
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
    for way in "a>b" "b>a"; do
      line "$way $faults"
      what="$way $faults"
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
  begun=$(date +%s%N)
  run "$program" "$family" "$mtu" "$rounds"
  echo "$what: ok in $((($(date +%s%N) - begun) / 1000000)) ms"
done
