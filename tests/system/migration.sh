#!/bin/bash
# ctest: TIMEOUT 120
# Connections between two hosts with two links migrate to their alternate path.  Both sides arm the migration.  Then a
# connection migrates when a program requests it, or when a link fails, and loses no data.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
source "$VB_SOURCE/tests/wire/lib.sh"
need ibv_devinfo
source "$(dirname "${BASH_SOURCE[0]}")/lib_ends.sh"

path_is() {  # path_is NAME PEER_GID STATE
  ask "$1" path
  expect "$1" path
  [ "$reply" = "path $2 $3" ]
}
has_path() { path_is "$@" || fail "$1: '$reply', not 'path $2 $3'"; }
arm() {  # arm ADDRESS_OF_ONE ADDRESS_OF_TWO TIMEOUT: makes the path between these the alternate path of both ends
  ask one "alternate $1 $2 $3"
  expect one rearmed
  ask two "alternate $2 $1 $3"
  expect two rearmed
  works one  # packets tell each end that the other one has armed the migration
  works two
}

make_hosts 1500
second_link

begin_end one a 10.77.0.1 timeout=16 retry=6
begin_end two b 10.77.0.2 timeout=16 retry=6
connect_ends one two
works one
has_path one ::ffff:10.77.0.2 0

# One side requests the migration, and the other follows.
arm 10.78.0.1 10.78.0.2 16
has_path one ::ffff:10.77.0.2 2
has_path two ::ffff:10.77.0.1 2
ask one migrate
expect one migrated
works one
hear one "path migrated"
hear two "path migrated"
has_path one ::ffff:10.78.0.2 0
has_path two ::ffff:10.78.0.1 0
echo "on request: ok"

# The link of the connection fails while data flows, and the connection goes on over the other link.
arm 10.77.0.1 10.77.0.2 16
ask one "flow 100000"
expect one flowing
on a ip link set eth1 down
hear one "path migrated"
hear two "path migrated"
flows one
has_path one ::ffff:10.77.0.2 0
has_path two ::ffff:10.77.0.1 0
stop_end one
stop_end two
echo "a link died: ok"

# The connection migrates to IPv6.  The address of eth1 must be added again, because it was lost with the interface.
on a ip link set eth1 up
on a ip address add fd78::1/64 dev eth1 nodad
begin_end one a 10.77.0.1 timeout=16 retry=6
begin_end two b 10.77.0.2 timeout=16 retry=6
connect_ends one two
arm fd78::1 fd78::2 16
on b ip address del 10.77.0.2/24 dev eth0
works two
hear one "path migrated"
hear two "path migrated"
has_path two fd78::1 0
works one
echo "to another family: ok"

# If the alternate path does not work either, the connection ends, as without an alternate path.
ask one "alternate fd78::1 fd78::9 16"
expect one rearmed
ask two "alternate fd78::2 fd78::1 16"
expect two rearmed
works one
works two
on a ip link set eth1 down
ask one "write 1000"
expect one failed
[[ "$reply" = "failed 12 "* ]] || fail "one says '$reply', not that it has run out of tries"
for name in "${!end_in[@]}"; do stop_end "$name"; done
echo "no path left: ok"
