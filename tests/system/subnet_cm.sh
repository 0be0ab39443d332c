#!/bin/bash
# RDMA CM programs run on the nodes of a simulated InfiniBand subnet under Debian's OpenSM.  The nodes must find each
# other by ARP and neighbour discovery over IPoIB, share their queries to the SA, and join multicast groups.
# Destinations with a cached path must be reached even while OpenSM is stopped.
source "$VB_SOURCE/tests/system/lib.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm rping ucmatose udaddy mckey saquery stdbuf ibv_devinfo python3

verbena fabric make --fat-tree 4 >"$work/net"
verbena fabric up "$work/net" --name cm --sm none >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
on() { verbena run --node "$1" --verbose -- "${@:2}"; }
start_on() { start run --node "$1" --verbose -- "${@:2}"; }
counter() { VERBENA_FABRIC=cm VERBENA_NODE=$1 verbena ps --counters | awk -v name="$2" '$3 == name { print $4 }'; }
listens() { VERBENA_FABRIC=cm VERBENA_NODE=$1 verbena ps | grep -q "listening.*:$2\b"; }

# run_pair NAME SERVER_NODE PORT "SERVER..." CLIENT_NODE "CLIENT...": runs a server and its client.  Both must succeed.
run_pair() {
  local server
  start_on "$2" timeout 60 $4 >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens "$2" "$3" || fail "$1: the server does not listen: $(cat "$work/server")"
  on "$5" timeout 60 $6 >"$work/client" 2>&1 || fail "$1: the client ends with $?: $(tail -5 "$work/client")"
  wait $server || fail "$1: the server: $(tail -5 "$work/server")"
  echo "$1: ok"
}

mkdir "$work/osm"
export OSM_TMP_DIR=$work/osm OSM_CACHE_DIR=$work/osm
start run --node host1 -- opensm -f "$work/osm/log" -s 1 >"$work/opensm.out" 2>&1 &
opensm=$!
# wait_active NODE: waits until programs on the node can connect to other nodes.
wait_active() {
  until_true 30 is_active "$1" || fail "the port of $1 stays inactive: $(cat "$work/opensm.out" "$work/osm/log")"
  until_true 30 is_member "$1" --fabric cm || fail "$1 joins no broadcast group: $(verbena sa groups --node "$1" --fabric cm)"
}
is_active() { on "$1" ibv_devinfo 2>&1 | grep -q 'state:.*PORT_ACTIVE'; }
for node in host1 host2 host3 host4; do wait_active $node; done

run_pair rping host1 7174 "rping -s -C 20 -S 20000 -V" host2 "rping -c -a 10.0.0.1 -C 20 -S 20000 -V"
run_pair "rping, IPv6" host1 7174 "rping -s -a fd00::1 -C 5 -V" host4 "rping -c -a fd00::1 -C 5 -V"
run_pair "rping on one host" host1 7174 "rping -s -C 5 -V" host1 "rping -c -a 127.0.0.1 -C 5 -V"
run_pair "rping to the own address" host2 7174 "rping -s -C 5 -V" host2 "rping -c -a 10.0.0.2 -C 5 -V"
run_pair ucmatose host3 7471 "ucmatose -c 100" host4 "ucmatose -c 100 -s 10.0.0.3"
run_pair "bound ucmatose" host3 7471 "ucmatose -b 10.0.0.3 -c 3" host4 "ucmatose -b 10.0.0.4 -c 3 -s 10.0.0.3"
run_pair udaddy host3 7174 "udaddy -c 3" host2 "udaddy -c 3 -s 10.0.0.3"

# ---- groups: one IP address means different groups in RDMA_PS_UDP and RDMA_PS_IPOIB
has_group() { on host3 saquery -g 2>/dev/null | grep "MGID\.*$1" >/dev/null; }
# has_joined FILE: succeeds if mckey has printed into the file that it has joined its group.
has_joined() { grep -q 'joined dgid: ' "$1"; }
# check_group NAME MGID OPTION...: checks that mckey with these options uses the group, and that the group ends with it.
check_group() {
  local name=$1 mgid=$2
  shift 2
  : >"$work/server"  # it has the output of the server before
  start_on host4 timeout 60 stdbuf -oL mckey "$@" -m 239.7.7.7 -b 10.0.0.4 -C 10 >"$work/server" 2>&1 &
  server=$!
  until_true 20 has_group "$mgid" || fail "$name: the SA does not know the group: $(on host3 saquery -g)"
  until_true 20 has_joined "$work/server" || fail "$name: the receiver does not join: $(cat "$work/server")"
  on host1 timeout 60 mckey "$@" -m 239.7.7.7 -b 10.0.0.1 -s -C 10 >"$work/client" 2>&1 ||
    fail "$name: the sender ends with $?: $(tail -5 "$work/client")"
  wait $server || fail "$name: the receiver: $(tail -5 "$work/server")"
  grep -q "joined dgid: $mgid " "$work/server" || fail "$name: not MGID $mgid: $(cat "$work/server")"
  group_is_removed() { ! has_group "$mgid"; }
  until_true 20 group_is_removed || fail "$name: the group still exists"
  echo "mckey, $name: ok"
}
check_group RDMA_PS_UDP ff12:4001:ffff::f07:707
check_group RDMA_PS_IPOIB ff12:401b:ffff::f07:707 -p 0x0002

# If one of two members on a host ends, the other one must still receive.
left=$(counter host4 sa_members_left)
: >"$work/server"
start_on host4 stdbuf -oL mckey -m 239.7.7.8 -b 10.0.0.4 -C 10 >"$work/one" 2>&1 &
one=$!
start_on host4 timeout 60 stdbuf -oL mckey -m 239.7.7.8 -b 10.0.0.4 -C 10 >"$work/server" 2>&1 &
server=$!
both_are_members() { has_joined "$work/one" && has_joined "$work/server"; }
until_true 20 both_are_members || fail "members do not join: $(cat "$work/one" "$work/server")"
kill -KILL $one
wait $one 2>/dev/null || true
one_has_left() { [ "$(counter host4 sa_members_left)" -gt "$left" ]; }
until_true 20 one_has_left || fail "the killed member does not leave: $(verbena sa groups --node host4)"
on host1 timeout 60 mckey -m 239.7.7.8 -b 10.0.0.1 -s -C 10 >"$work/client" 2>&1 || fail "mckey: $(tail -5 "$work/client")"
wait $server || fail "the second member receives nothing: $(tail -5 "$work/server")"
echo "two members of a host: ok"

# ---- a hundred connections to one host need at most two queries
before=$(counter host1 sa_queries)
# count_without_query: prints how many look-ups of paths needed no separate query.  Connections that start before the
# first answer share its query.  Later connections find the path in the cache.
count_without_query() {
  VERBENA_FABRIC=cm VERBENA_NODE=host1 verbena ps --counters |
    awk '$3 ~ /^sa_path_(hits|queries_shared)$/ { sum += $4 } END { print sum + 0 }'
}
before_without_query=$(count_without_query)
run_pair "ucmatose to a new host" host3 7471 "ucmatose -c 100" host1 "ucmatose -c 100 -s 10.0.0.3"
[ $(($(counter host1 sa_queries) - before)) -le 2 ] ||
  fail "100 connections have caused $(($(counter host1 sa_queries) - before)) queries to the SA"
[ $(($(count_without_query) - before_without_query)) -ge 90 ] || fail "the cache was not used: only $(($(count_without_query) - before_without_query)) times"

# ---- verbena sa shows the paths, addresses and groups of a node, and can flush the caches
sa() { verbena sa "${@:2}" --node "$1" --fabric cm; }
# sa_json NODE TOPIC EXPRESSION: prints the value of a Python expression in which `all` is the JSON of this topic.
sa_json() { sa "$1" "$2" --json | python3 -c "import json, sys; all = json.load(sys.stdin); print($3)"; }
run_pair "rping before verbena sa" host1 7174 "rping -s -C 2 -V" host2 "rping -c -a 10.0.0.1 -C 2 -V"
gid_of_host1=$(sa_json host2 addresses '[one["gid"] for one in all["addresses"] if one["address"] == "10.0.0.1"][0]')
sa host2 paths >"$work/paths"
grep -q "known *$gid_of_host1 " "$work/paths" || fail "no path to $gid_of_host1: $(cat "$work/paths")"
[ "$(sa_json host2 paths 'sum(one["destination_lid"] != 0 and one["mtu"] >= 2048 for one in all["paths"])')" -ge 1 ] ||
  fail "the paths have no values: $(sa host2 paths --json)"
sa host2 groups >"$work/groups"
grep -q 'ff12:401b:ffff::ffff:ffff .* full ' "$work/groups" || fail "no broadcast group: $(cat "$work/groups")"
[ "$(sa_json host2 groups 'all["groups"][0]["joined"]')" = full ] || fail "JSON of the groups: $(sa host2 groups --json)"
# host2 may send a query between the two commands.
stats_agree() { sa host2 stats >"$work/stats" && grep -q "^sa_queries  *$(counter host2 sa_queries)$" "$work/stats"; }
until_true 20 stats_agree || fail "sa stats: $(cat "$work/stats")"
# Bit 12 of OpenSM's CapabilityMask2 is set if OpenSM supports send-only full members.
mask2=$(on host2 saquery -c | sed -n 's/.*Capability mask 2\.*//p')
[ "$(awk '$1 == "sa_send_only_full_members" { print $2 }' "$work/stats")" = $((mask2 >> 12 & 1)) ] ||
  fail "CapabilityMask2 of OpenSM is $mask2, and sa stats says: $(cat "$work/stats")"
if grep -v '^\(COUNTER\|sa_\|ipoib_\|limit_\)' "$work/stats"; then fail "sa stats shows counters of other layers"; fi

before=$(counter host2 sa_queries)
run_pair "rping with a known path" host1 7174 "rping -s -C 2 -V" host2 "rping -c -a 10.0.0.1 -C 2 -V"
[ "$(counter host2 sa_queries)" = "$before" ] || fail "a known path was queried again"
VERBENA_FABRIC=cm VERBENA_NODE=host2 verbena sa flush >"$work/flush"
grep -q '^removed [1-9][0-9]* paths* and [1-9][0-9]* address' "$work/flush" || fail "flush: $(cat "$work/flush")"
[ "$(sa_json host2 paths 'len(all["paths"])')" = 0 ] || fail "paths are left: $(sa host2 paths)"
[ "$(sa_json host2 groups 'all["groups"][0]["joined"]')" = full ] || fail "flush has left the group: $(sa host2 groups)"
run_pair "rping after the flush" host1 7174 "rping -s -C 2 -V" host2 "rping -c -a 10.0.0.1 -C 2 -V"
[ "$(counter host2 sa_queries)" -gt "$before" ] || fail "no query was sent after the flush"
[ "$(sa_json host2 flush 'all["flushed"]["paths"] >= 1')" = True ] || fail "flush --json counts nothing"

start run -- rping -s >"$work/server" 2>&1 &
server=$!
wait_listening 7174
if verbena sa paths >"$work/out" 2>&1; then fail "verbena sa works without InfiniBand"; fi
grep -qx 'verbena sa: this host has no InfiniBand port, so it uses no subnet administration' "$work/out" ||
  fail "a host without InfiniBand says: $(cat "$work/out")"
kill $server
wait $server 2>/dev/null || true
echo "verbena sa: ok"

# ---- failures have a reason
# fails_with WHAT TEXT NODE COMMAND...: checks that the command fails on the node, and prints the text.
fails_with() {
  local what=$1 text=$2
  shift 2
  if on "$@" >"$work/out" 2>&1; then fail "$what worked"; fi
  grep -q "$text" "$work/out" || fail "$what does not say '$text': $(cat "$work/out")"
}
fails_with "an address that nobody has" 'resolving 10.0.0.99.* failed' host2 timeout 20 rping -c -a 10.0.0.99 -C 1
fails_with "an address without a route" 'Network is unreachable' host2 timeout 20 rping -c -a 192.168.7.7 -C 1
fails_with "a port where nobody listens" 'no program listens on it' host2 timeout 20 rping -c -a 10.0.0.1 -p 9 -C 1

# ---- if a host is unplugged, other hosts remove only its paths, and find the host again when it is plugged in
has_path_to() { verbena sa paths --node host2 | grep -q "known.*$1 "; }
gid_of() { verbena sa addresses --node host2 | awk -v ip="$1" '$2 == ip { print $4 }'; }
leaf=$(awk '/"host3"/ && !/^\[/ { found = 1; next } found && /^\[1\]/ { split($0, part, "\""); print part[2]; exit }' "$work/net")
run_pair "rping before the cable is pulled" host3 7174 "rping -s -C 1" host2 "rping -c -a 10.0.0.3 -C 1"
run_pair "rping to a host that stays plugged in" host1 7174 "rping -s -C 1" host2 "rping -c -a 10.0.0.1 -C 1"
gid1=$(gid_of 10.0.0.1) gid3=$(gid_of 10.0.0.3)
[ -n "$gid1" ] && [ -n "$gid3" ] && has_path_to "$gid3" && has_path_to "$gid1" || fail "host2 has no path to $gid3 or $gid1: $(verbena sa paths --node host2)"
verbena fabric fault link host3 "$leaf" down >/dev/null || fail "no link from host3 to '$leaf'"
path_is_removed() { ! has_path_to "$gid3"; }
until_true 30 path_is_removed || fail "host2 still has the path to an unplugged host: $(verbena sa paths --node host2)"
has_path_to "$gid1" || fail "host2 has removed the path to a host that is still plugged in: $(verbena sa paths --node host2)"
verbena fabric fault link host3 "$leaf" up >/dev/null
wait_active host3
run_pair "rping after the cable is plugged" host3 7174 "rping -s -C 1" host2 "rping -c -a 10.0.0.3 -C 1"

# ---- while OpenSM is stopped, destinations with a cached path still work, and others cannot be resolved
kill -STOP $opensm
run_pair "rping while OpenSM is stopped" host1 7174 "rping -s -C 5 -V" host2 "rping -c -a 10.0.0.1 -C 5 -V"
fails_with "a new destination without OpenSM" 'resolving 10.0.0.4.* failed' host3 timeout 20 rping -c -a 10.0.0.4 -C 1
kill -CONT $opensm
run_pair "rping after OpenSM is continued" host4 7174 "rping -s -C 5 -V" host3 "rping -c -a 10.0.0.4 -C 5 -V"

kill $opensm
wait $opensm || true
verbena fabric down cm >"$work/down" || fail "the fabric does not go down"
