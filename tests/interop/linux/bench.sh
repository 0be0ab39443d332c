#!/bin/bash
# Measures Verbena and the kernel's soft-RoCE in turn on the same emulated machine, which runs both ends.
# Prints "STACK PROGRAM FIGURE" for each run, for scripts/bench.
#     bench.sh ROUNDS
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
rounds=${1:?how often}

verbena_on_b() { on b env LD_LIBRARY_PATH=/lib /verbena/bin/verbena "$@"; }
declare -A device=([rxe]=rxe0 [verbena]=verbena0)
run_with() {  # run_with STACK COMMAND...: runs a command with rxe or verbena
  local stack=$1
  shift
  if [ "$stack" = rxe ]; then on b "$@"; else verbena_on_b run -- "$@"; fi
}
index_of() {  # index_of STACK: prints the index of the GID of b's IPv4 address
  run_with "$1" ibv_devinfo -v -d "${device[$1]}" |
    sed -n "s/^[[:space:]]*GID\[ *\([0-9]*\)\]:[[:space:]]*::ffff:$(address_of b 4)\b.*/\1/p" | head -1
}
measure() {  # measure STACK PROGRAM COLUMN OPTION...: prints the figure in that column of the client's table
  local stack=$1 program=$2 column=$3 index server
  shift 3
  index=$(index_of "$stack")
  [ -n "$index" ] || fail "$stack has no GID for $(address_of b 4)"
  local command=("$program" -d "${device[$stack]}" -x "$index" -F "$@")
  (run_with "$stack" "${command[@]}") >"$work/$program.server" 2>&1 &
  server=$!
  is_listening() { on b ss -tlnH "sport = :18515" | grep . >/dev/null; }
  until_true 60 is_listening || fail "$program does not listen: $(cat "$work/$program.server")"
  (run_with "$stack" "${command[@]}" "$(address_of b 4)") >"$work/$program" 2>&1 ||
    fail "$program: $(cat "$work/$program" "$work/$program.server")"
  wait $server || fail "$program's server: $(cat "$work/$program.server")"
  echo "$stack $program $(awk -v column="$column" '/^ *#bytes/ { table = 1; next } table && NF { print $column; exit }' "$work/$program")"
}

make_linux_pair_with_verbena 1500
for ((round = 0; round < rounds; ++round)); do
  for stack in rxe verbena; do
    if [ $stack = verbena ]; then
      on b rmmod rdma_rxe
    elif [ $round -gt 0 ]; then
      verbena_on_b agent stop >/dev/null
      no_port() { ! on b ss -ulnH "sport = :4791" | grep . >/dev/null; }
      until_true 20 no_port || fail "Verbena does not release the port"
      on b insmod /modules/rdma_rxe.ko
      on b rdma link add rxe0 type rxe netdev eth0
    fi
    measure $stack ib_send_lat 5 -s 64 -n 1000
    measure $stack ib_write_bw 4 -s 65536 -n 300
  done
done
