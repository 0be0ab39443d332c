#!/bin/bash
# Tests atomics and unreliable connections between Verbena and Linux, with each side as requester and as responder.
# both_ways.sh tests the programs that use the connection manager.
source "$(dirname "${BASH_SOURCE[0]}")/../../system/lib.sh"
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need ib_atomic_bw ib_atomic_lat ib_send_lat ib_write_lat ibv_uc_pingpong

# run_on_both SERVER OPTION COMMAND...: runs the same command on both hosts, each with its own GID index after OPTION.
# Both ends first exchange their addresses by TCP over IPv4.
run_on_both() {
  local server=$1 option=$2 client own other
  shift 2
  client=$([ "$server" = a ] && echo b || echo a)
  own=$(gid_index "$server" "$family")
  other=$(gid_index "$client" "$family")
  run_pair "$* over IPv$family, server $server" "$server" tcp:18515 "$@" "$option" "$own" -- \
    "$@" "$option" "$other" "$(address_of "$server" 4)"
}

make_pair 1500
for server in a b; do
  for family in 4 6; do
    address=$(address_of $server $family)
    # Each end of perftest uses its own adapter's limit of outstanding atomics.  -o sets the smaller one of both limits.
    for kind in CMP_AND_SWAP FETCH_AND_ADD; do
      run_on_both $server -x ib_atomic_lat -F -o 16 -A $kind -n 50
      run_on_both $server -x ib_atomic_bw -F -o 16 -A $kind -n 200
    done
    run_on_both $server -g ibv_uc_pingpong -m 1024 -s 5000 -n 50
    run_on_both $server -x ib_send_lat -F -c UC -s 3000 -n 50
    run_on_both $server -x ib_write_lat -F -c UC -s 3000 -n 50
  done
done

# The line loses packets, so requesters repeat atomics.  The responder must answer these, too.
line "both loss=2"
family=4
for server in a b; do
  address=$(address_of $server 4)
  run_on_both $server -x ib_atomic_lat -F -o 16 -A FETCH_AND_ADD -n 50
done
line_counts
check_captures
