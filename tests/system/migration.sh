#!/bin/bash
# Connections between two hosts with two links migrate to their alternate path.  Both sides arm the migration.  Then a
# connection must migrate when a program requests it, or when a link fails, and must lose no data.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need ibv_devinfo
source "$(dirname "${BASH_SOURCE[0]}")/lib_ends.sh"

path_is() {  # path_is NAME PEER_GID STATE
  send_command "$1" path
  expect_answer "$1" path
  [ "$reply" = "path $2 $3" ]
}
check_path() { path_is "$@" || fail "$1: '$reply', not 'path $2 $3'"; }
arm() {  # arm ADDRESS_OF_ONE ADDRESS_OF_TWO TIMEOUT: makes the path between these the alternate path of both ends
  send_command one "alternate $1 $2 $3"
  expect_answer one rearmed
  send_command two "alternate $2 $1 $3"
  expect_answer two rearmed
  check_data one  # packets tell each end that the other one has armed the migration
  check_data two
}

make_hosts 1500
second_link

start_endpoint one a 10.77.0.1 timeout=16 retry=6
start_endpoint two b 10.77.0.2 timeout=16 retry=6
connect_endpoints one two
check_data one
check_path one ::ffff:10.77.0.2 0

# One side requests the migration, and the other side follows.
arm 10.78.0.1 10.78.0.2 16
check_path one ::ffff:10.77.0.2 2
check_path two ::ffff:10.77.0.1 2
send_command one migrate
expect_answer one migrated
check_data one
wait_event one "path migrated"
wait_event two "path migrated"
check_path one ::ffff:10.78.0.2 0
check_path two ::ffff:10.78.0.1 0
echo "on request: ok"

# The link of the connection fails while data flows, and the connection must continue over the other link.
arm 10.77.0.1 10.77.0.2 16
send_command one "flow 100000"
expect_answer one flowing
on a ip link set eth1 down
wait_event one "path migrated"
wait_event two "path migrated"
check_flow one
check_path one ::ffff:10.77.0.2 0
check_path two ::ffff:10.77.0.1 0
stop_endpoint one
stop_endpoint two
echo "a link failed: ok"

# The connection migrates to IPv6.  The address of eth1 must be added again, because it was lost with the interface.
on a ip link set eth1 up
on a ip address add fd78::1/64 dev eth1 nodad
start_endpoint one a 10.77.0.1 timeout=16 retry=6
start_endpoint two b 10.77.0.2 timeout=16 retry=6
connect_endpoints one two
arm fd78::1 fd78::2 16
on b ip address del 10.77.0.2/24 dev eth0
check_data two
wait_event one "path migrated"
wait_event two "path migrated"
check_path two fd78::1 0
check_data one
echo "to another family: ok"

# If the alternate path does not work either, the connection must end, as without an alternate path.
send_command one "alternate fd78::1 fd78::9 16"
expect_answer one rearmed
send_command two "alternate fd78::2 fd78::1 16"
expect_answer two rearmed
check_data one
check_data two
on a ip link set eth1 down
send_command one "write 1000"
expect_answer one failed
[[ "$reply" = "failed 12 "* ]] || fail "one answers '$reply', and does not report that its retries are exceeded"
for name in "${!endpoint_in[@]}"; do stop_endpoint "$name"; done
echo "both paths failed: ok"
