# Defines functions that run OpenSM on several nodes of a subnet, and programs that are members of multicast groups
# (tests/programs/groups.c).  Source lib.sh first.
groups=$VB_PREFIX/tests/programs/groups

declare -A manager_pid member_in

on() { verbena run --node "$1" -- "${@:2}"; }
start_on() { start run --node "$1" --verbose -- "${@:2}"; }
counter() { VERBENA_NODE=$1 verbena ps --counters | awk -v name="$2" '$3 == name { sum += $4 } END { print sum + 0 }'; }
is_active() { on "$1" ibv_devinfo 2>&1 | grep -q 'state:.*PORT_ACTIVE'; }
# wait_active NODE...: waits until programs on the nodes can connect to one another.
wait_active() {
  local node
  for node in "$@"; do
    until_true 30 is_active "$node" || fail "the port of $node stays inactive: $(tail "$work"/*.osm/log)"
    until_true 30 is_member "$node" || fail "$node joins no broadcast group: $(tail "$work"/*.osm/log)"
  done
}

# begin_manager NODE PRIORITY [OPTION...]: starts OpenSM.  Each OPTION is a line of its options file.  A standby sends a
# request to the master every 0.3 s, and takes over after two requests without an answer.
begin_manager() {
  local files=$work/$1.osm
  mkdir -p "$files"
  printf '%s\n' "sm_priority $2" 'sminfo_polling_timeout 300' 'polling_retry_number 2' 'sweep_interval 1' 'force_log_flush TRUE' "${@:3}" >"$files/options"
  OSM_TMP_DIR=$files OSM_CACHE_DIR=$files start run --node "$1" -- opensm -F "$files/options" -f "$files/log" \
    >"$files/out" 2>&1 &
  manager_pid[$1]=$!
}
end_manager() {
  kill -KILL "${manager_pid[$1]}"
  wait "${manager_pid[$1]}" 2>/dev/null || true
}
lid() { on "$1" ibstat | sed -n 's/.*Base lid: //p'; }
# sees_master NODE HOST: succeeds if OpenSM on HOST is the master that sminfo finds from NODE.
sees_master() { on "$1" sminfo 2>/dev/null | grep -q "sm lid $(lid "$2") .*SMINFO_MASTER"; }
wait_master() { until_true 30 sees_master "$1" "$2" || fail "$2 does not become master: $(tail "$work"/*.osm/log)"; }

# members NODE: queries the SA from NODE.  Prints a line "MGID MLID MEMBER JOIN_STATE" for each member of each group.
members() {
  on "$1" saquery --smkey 1 -m >"$work/saquery" 2>&1 || { echo "saquery fails: $(cat "$work/saquery")"; return; }
  awk -F '[.][.]+' '/MGID/ { mgid = $2 } /Mlid/ { mlid = $2 } /ScopeState/ { state = substr($2, length($2)) }
    /NodeDescription/ { print mgid, mlid, $2, "0x" state }' "$work/saquery" | sort
}
# subscriptions NODE: queries the SA from NODE.  Prints a line "PORT TRAP" for each subscription to notices.
subscriptions() {
  on "$1" saquery --smkey 1 -I >"$work/saquery" 2>&1 || { echo "saquery fails: $(cat "$work/saquery")"; return; }
  awk -F '[.][.]+' '/SubscriberGID/ { port = $2 } /trap_num/ { print port, $2 }' "$work/saquery" | sort
}

# begin_member NODE ADDRESS: starts the program of groups.c on the node.  `send_to_member NODE COMMAND...` sends
# commands to it.
begin_member() {
  local in
  mkfifo "$work/$1.in"
  start_on "$1" "$groups" "$2" <"$work/$1.in" >"$work/$1.out" 2>&1 &
  exec {in}>"$work/$1.in"
  member_in[$1]=$in
  until_true 20 has_printed "$1" ready || fail "the member on $1: $(cat "$work/$1.out")"
}
send_to_member() { (echo "${@:2}" >&"${member_in[$1]}") 2>/dev/null || fail "the member on $1 has ended: $(cat "$work/$1.out")"; }
# has_printed NODE LINE: succeeds if the program on the node has printed the line.
has_printed() { grep -qx -- "$2" "$work/$1.out"; }
