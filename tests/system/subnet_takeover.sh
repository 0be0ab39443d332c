#!/bin/bash
# ctest: PLAIN
# Programs must continue while OpenSM changes their subnet, dies, and another OpenSM takes over.  The path cache must
# forget exactly the paths that a change has made invalid.  Under each manager, hosts must join their groups and
# subscribe to notices again.
source "$VB_SOURCE/tests/system/lib.sh"
source "$VB_SOURCE/tests/system/lib_managers.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need opensm rping saquery sminfo ibstat ibv_devinfo ibtracert smpquery python3

export VERBENA_FABRIC=takeover
verbena fabric make --fat-tree 4 >"$work/net"
verbena fabric up "$work/net" --name takeover --sm none >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"

# path_json NODE EXPRESSION: prints the value of a Python expression in which `paths` is the list of NODE's cached
# paths.
path_json() {
  verbena sa paths --node "$1" --json |
    python3 -c "import json, sys; paths = [one for one in json.load(sys.stdin)['paths'] if one['state'] == 'known']; print($2)"
}
paths_known() { path_json "$1" 'len(paths)'; }
# gid_of NODE IP: prints the GID of the address, from the cache of NODE.
gid_of() { verbena sa addresses --node "$1" | awk -v ip="$2" '$2 == ip { print $4 }'; }
# paths_forgotten NODE: prints how many paths NODE has forgotten.
# forgotten_by NODE CAUSE: prints how many paths NODE has forgotten because of the cause.
paths_forgotten() { VERBENA_NODE=$1 verbena ps --counters | awk '$3 ~ /^sa_paths_forgotten_/ { sum += $4 } END { print sum + 0 }'; }
forgotten_by() { counter "$1" "sa_paths_forgotten_$2"; }
listens() { VERBENA_NODE=$1 verbena ps | grep -q "listening.*:$2\b"; }
# run_rping NAME NODE IP CLIENT_NODE: runs rping from CLIENT_NODE to NODE, which has the address IP.
run_rping() {
  local server
  start_on "$2" timeout 60 rping -s -C 3 -V >"$work/server" 2>&1 &
  server=$!
  until_true 20 listens "$2" 7174 || fail "$1: the server does not listen: $(cat "$work/server")"
  on "$4" timeout 60 rping -c -a "$3" -C 3 -V >"$work/client" 2>&1 || fail "$1: the client: $(tail -5 "$work/client")"
  wait $server || fail "$1: the server: $(tail -5 "$work/server")"
}
# lid_to NODE GID: prints the DLIDs of NODE's cached paths to the GID.
lid_to() { path_json "$1" "' '.join(str(one['destination_lid']) for one in paths if one['destination'] == '$2')"; }

# start_endless_ping NAME NODE IP PORT CLIENT_NODE: starts an rping that runs until the test ends, and sets `pinging` to
# the client's pid.
start_endless_ping() {
  start_on "$2" rping -s -p "$4" -S 1000 -V >"$work/server.$4" 2>&1 &
  until_true 20 listens "$2" "$4" || fail "$1: the server does not listen: $(cat "$work/server.$4")"
  start_on "$5" rping -c -a "$3" -p "$4" -S 1000 -V >"$work/client.$4" 2>&1 &
  pinging=$!
  wait_traffic "$5" "$pinging"
}
packets() { VERBENA_NODE=$1 verbena ps --counters | awk -v pid="$2" '$1 == pid && $3 == "packets_out" { n = $4 } END { print n + 0 }'; }
has_sent() { [ "$(packets "$1" "$2")" -gt "$3" ]; }
# wait_traffic NODE PID: waits until the program on NODE has sent 500 further packets.
wait_traffic() { until_true 60 has_sent "$1" "$2" $(($(packets "$1" "$2") + 500)) || fail "a connection from $1 has no traffic: $(cat "$work"/client.*)"; }

# OpenSM repeats a request after this time.  If a node is slow to answer, a repeated request to register again would
# make it forget its paths and join its groups twice.
long_timeout='transaction_timeout 2000'
begin_manager host1 5 "$long_timeout"
wait_active host1 host2 host3 host4
declare -A gid
for i in 1 2 3 4; do run_rping "first connection to host$i" host$i 10.0.0.$i host$((i % 4 + 1)); done
for i in 1 2 4; do
  run_rping "connection from host3" host$i 10.0.0.$i host3
  gid[host$i]=$(gid_of host3 10.0.0.$i)
done
run_rping "connection from host4" host3 10.0.0.3 host4
gid[host3]=$(gid_of host4 10.0.0.3)

# ---- if a path is rerouted, its LIDs do not change, so no path may be forgotten, and no query may be sent
# spine_in_path: prints the switch in the middle of the route from host3 to host1.
spine_in_path() { on host3 ibtracert "$(lid host3)" "$(lid host1)" 2>&1 | sed -n 's/.*"\(spine[12]\)".*/\1/p' | head -1; }
start_endless_ping "connection that is rerouted" host1 10.0.0.1 7200 host3
rerouted_client=$pinging
old=$(spine_in_path)
[ -n "$old" ] || fail "no route from host3 to host1: $(on host3 ibtracert "$(lid host3)" "$(lid host1)" 2>&1)"
before=$(paths_forgotten host3) queries=$(counter host3 sa_queries)
verbena fabric fault link "$old" leaf1 down >/dev/null || fail "no link from $old to leaf1"
is_rerouted() { [ -n "$(spine_in_path)" ] && [ "$(spine_in_path)" != "$old" ]; }
until_true 30 is_rerouted || fail "the route from host3 still goes by $old: $(on host3 ibtracert "$(lid host3)" "$(lid host1)" 2>&1)"
wait_traffic host3 "$rerouted_client"
run_rping "connection by the new route" host1 10.0.0.1 host3
[ "$(paths_forgotten host3) $(counter host3 sa_queries)" = "$before $queries" ] ||
  fail "host3 has forgotten $(($(paths_forgotten host3) - before)) paths, and sent $(($(counter host3 sa_queries) - queries)) queries"
verbena fabric fault link "$old" leaf1 up >/dev/null
echo "rerouted: ok"

# ---- the LID of a host changes under a restarted manager
end_manager host1
new_lid=40
host4_guid=0x$(on host4 ibstat | sed -n 's/.*Port GUID: 0x//p')
awk -v guid="$host4_guid" -v lid="$(printf '%#06x' "$new_lid")" '$1 == guid { $2 = $3 = lid } { print }' "$work/host1.osm/guid2lid" >"$work/guid2lid"
cp "$work/guid2lid" "$work/host1.osm/guid2lid"
known3=$(paths_known host3) known4=$(paths_known host4)
[ "$known3" -ge 3 ] && [ "$known4" -ge 1 ] || fail "there are no paths to forget: $known3, $known4"
before3=$(paths_forgotten host3) before4=$(paths_forgotten host4)
reregister=$(forgotten_by host3 reregister) changed=$(forgotten_by host4 lid_change)
begin_manager host1 5 "$long_timeout" 'honor_guid2lid_file TRUE'
has_new_lid() { on host3 smpquery portinfo "$new_lid" 1 2>/dev/null | grep -q "^Lid:\.*$new_lid$"; }
until_true 30 has_new_lid || fail "host4 has LID $(lid host4), not $new_lid: $(tail "$work/host1.osm/log")"
wait_active host4
both_have_forgotten() { [ "$(forgotten_by host3 reregister)" -gt "$reregister" ] && [ "$(forgotten_by host4 lid_change)" -gt "$changed" ]; }
until_true 30 both_have_forgotten || fail "paths are not forgotten: $(verbena sa stats --node host3; verbena sa stats --node host4)"
run_rping "connection to the new LID" host4 10.0.0.4 host3
[ "$(lid_to host3 "${gid[host4]}")" = $new_lid ] || fail "host3 has cached: $(verbena sa paths --node host3)"
run_rping "connection from the new LID" host3 10.0.0.3 host4
# A restarted manager has lost all subscriptions, so the hosts must forget their whole caches.
[ "$(forgotten_by host3 reregister)" = $((reregister + known3)) ] && [ "$(paths_forgotten host3)" = $((before3 + known3)) ] ||
  fail "host3 had $known3 paths, and has forgotten: $(verbena sa stats --node host3)"
[ "$(forgotten_by host4 lid_change)" = $((changed + known4)) ] && [ "$(paths_forgotten host4)" = $((before4 + known4)) ] ||
  fail "host4 had $known4 paths, and has forgotten: $(verbena sa stats --node host4)"
echo "new LID: ok"

# ---- before a manager dies, programs on two hosts join groups, in different orders on the two hosts
begin_manager host2 3 "$long_timeout"
for node in host3 host4; do begin_member $node "10.0.0.${node#host}"; done
join() {
  send_to_member "$1" join "$2" "$3"
  until_true 30 grep -q "^joined $2 " "$work/$1.out" || fail "$1 does not join $2: $(cat "$work/$1.out")"
}
join host4 239.1.1.1 full
join host3 239.1.1.2 full
join host3 239.1.1.1 send
join host4 239.1.1.2 full
join host3 239.1.1.3 full
join host4 239.1.1.3 send
rounds=0
# passes SENDER GROUP TEXT RECEIVER: sends the text, and succeeds if the receiver prints it soon.
passes() {
  send_to_member "$1" send "$2" "$3"
  until_true 1 has_printed "$4" "got $3"
}
# check_group SENDER GROUP TEXT RECEIVER: sends the text until the receiver prints it.  OpenSM answers a join before it
# writes the tables of the switches, so the first messages may be lost.
check_group() { until_true 30 passes "$@" || fail "$4 does not print 'got $3' from $2: $(cat "$work/$4.out")"; }
# check_messages: checks that messages to each group from one host reach the member on the other host.
check_messages() {
  rounds=$((rounds + 1))
  check_group host3 239.1.1.1 "one $rounds" host4
  check_group host4 239.1.1.2 "two $rounds" host3
  check_group host4 239.1.1.3 "three $rounds" host3
}
check_messages
start_endless_ping "connection under all managers" host4 10.0.0.4 7300 host3
lasting_client=$pinging
run_rping "connection from host3 to host1" host1 10.0.0.1 host3

is_standby() { on host3 saquery SMIR 2>&1 | grep -q 'SMState\.*2$'; }
until_true 30 is_standby || fail "host2 is no standby: $(on host3 saquery SMIR 2>&1)"
all_are_subscribed() { [ "$(subscriptions host3 | tee "$work/subscriptions" | wc -l)" = 20 ]; }  # 5 traps for each of 4 ports
until_true 30 all_are_subscribed || fail "the SA has these subscriptions: $(cat "$work/subscriptions")"
# The programs have 6 memberships, and 4 ports are in the broadcast group.
all_are_members() { [ "$(members host3 | tee "$work/members" | wc -l)" = 10 ]; }
until_true 30 all_are_members || fail "the SA has these members: $(cat "$work/members")"

# has_same WHAT: succeeds if the SA has the same members or subscriptions as the file $work/WHAT.
has_same() { "$1" host3 >"$work/$1.now" && cmp -s "$work/$1" "$work/$1.now"; }
# check_sa_under MANAGER: checks that the SA has the same members, MLIDs and subscriptions as under the first manager.
check_sa_under() {
  local what
  for what in members subscriptions; do
    until_true 30 has_same $what || fail "under $1 the SA has other $what: $(diff "$work/$what" "$work/$what.now")"
  done
}
# check_under MANAGER: checks that the new master changes nothing for programs.
check_under() {
  check_sa_under "$1"
  ! grep '^\(lost\|failed\)' "$work"/host[34].out || fail "a program has noticed that $1 is the master"
  check_messages
  wait_traffic host3 "$lasting_client"
  run_rping "connection to host4 under $1" host4 10.0.0.4 host3
  run_rping "connection to host1 under $1" host1 10.0.0.1 host4
}

# ---- the master dies, and there is no manager until the standby takes over
# store_counters: stores the counters of host3 for check_rejoined.
store_counters() { known3=$(paths_known host3) before3=$(paths_forgotten host3) changed=$(forgotten_by host3 sm_change) rejoins=$(counter host3 sa_rejoins); }
# check_rejoined COUNT: checks that host3 has forgotten each path once and rejoined COUNT groups since store_counters.
check_rejoined() {
  [ "$(forgotten_by host3 sm_change)" = $((changed + known3)) ] && [ "$(paths_forgotten host3)" = $((before3 + known3)) ] ||
    fail "host3 had $known3 paths, and has forgotten: $(verbena sa stats --node host3)"
  [ "$(counter host3 sa_rejoins)" = $((rejoins + $1)) ] ||
    fail "host3 has joined $(($(counter host3 sa_rejoins) - rejoins)) of $1 groups again"
}
stop_process "${manager_pid[host2]}"
end_manager host1
wait_traffic host3 "$lasting_client"
run_rping "connection without a manager" host4 10.0.0.4 host3
check_messages
send_to_member host4 join 239.1.1.4 full
store_counters
kill -CONT "${manager_pid[host2]}"
wait_master host3 host2
until_true 30 grep -q '^joined 239.1.1.4 ' "$work/host4.out" || fail "a join that began without a manager does not end: $(cat "$work/host4.out")"
send_to_member host4 leave 239.1.1.4
check_under host2
check_rejoined 4
echo "takeover: ok"

# ---- the manager of higher priority starts again, and the other manager hands the subnet over to it
store_counters
begin_manager host1 5 "$long_timeout"
wait_master host3 host1
check_under host1
check_rejoined 4
echo "handover: ok"

# ---- the new master reports changes, because the hosts have subscribed again
gid_out=$(forgotten_by host3 gid_out) before3=$(paths_forgotten host3)
run_rping "connection to host2" host2 10.0.0.2 host3
gid2=$(gid_of host3 10.0.0.2)
verbena fabric fault link host2 leaf1 down >/dev/null || fail "no link from host2 to leaf1"
has_forgotten_a_path() { [ "$(forgotten_by host3 gid_out)" -gt "$gid_out" ]; }
until_true 30 has_forgotten_a_path || fail "host3 does not notice that host2 is unplugged: $(verbena sa stats --node host3)"
[ -z "$(lid_to host3 "$gid2")" ] && [ "$(paths_forgotten host3)" = $((before3 + 1)) ] ||
  fail "host3 has forgotten $(($(paths_forgotten host3) - before3)) paths, and has cached $(verbena sa paths --node host3)"
echo "notices: ok"

verbena fabric down takeover >"$work/down" || fail "the fabric does not go down"
