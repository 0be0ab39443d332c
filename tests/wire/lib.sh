# Makes two hosts and the line between them.  Source tests/system/lib.sh first, and then this file.
#
#   make_hosts [MTU]              makes hosts a (10.77.0.1, fd77::1, fe80::a) and b (10.77.0.2, ...)
#   on a verbena run -- ...       runs a command on a host
#   start_on a COMMAND...         replaces the shell by a command on a host; with &, $! is the pid of the command itself
#   second_link                   connects eth1 of a (10.78.0.1, fd78::1) and b (10.78.0.2, fd78::2), without the line
#   line "both loss=10"           sends a command to the line (main.cc); fails if the line refuses it
#   line_counts                   prints the line's counts for both directions
#   captures                      ends the line, which completes the captures $work/line.{a,b}.pcap
#   check_captures                ends the line, and checks all frames with programs that share no code with Verbena
#   fields HOST FILTER -e ...     prints fields of the packets in the host's capture, by tshark
command -v ip >/dev/null || skip "iproute2 is not installed"
[ -e /dev/net/tun ] || skip "no /dev/net/tun here"
unshare --net true 2>/dev/null || skip "no network namespaces here"

declare -A host_pid
line_seed=${VB_SEED:-1}

end_hosts() { [ ${#host_pid[@]} -eq 0 ] || kill "${host_pid[@]}" 2>/dev/null || true; }
trap 'end_hosts; rm -rf "$work"' EXIT

# make_host NAME: makes a network namespace.  The namespace exists as long as the process that is started in it.
make_host() {
  local answer
  mkfifo "$work/host.$1"
  unshare --net bash -c 'ip link set lo up && echo up >"$1"; exec sleep infinity' host \
    "$work/host.$1" &
  host_pid[$1]=$!
  read -r answer <"$work/host.$1" || fail "host $1 did not start"
}

start_on() {
  local host=$1 enter_namespace
  shift
  if [ -e "$work/guest.$host/started" ]; then  # a virtual machine: tests/interop/linux
    exec python3 "$VB_SOURCE/tests/interop/linux/guest.py" run "$work/guest.$host" "$@"
  fi
  enter_namespace=(nsenter --net="/proc/${host_pid[$host]}/ns/net")
  [ "$1" = verbena ] || exec "${enter_namespace[@]}" "$@"
  shift
  LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 \
    exec "${enter_namespace[@]}" "$VB_PREFIX/bin/verbena" "$@"
}
on() { (start_on "$@"); }

address_of() {  # address_of HOST FAMILY
  local n=1
  [ "$1" = a ] || n=2
  case "$2" in
    4) echo "10.77.0.$n" ;;
    6) echo "fd77::$n" ;;
    local) echo "fe80::$1%eth0" ;;
  esac
}

configure_host() {  # configure_host NAME MTU
  on "$1" ip link set eth0 mtu "$2" txqueuelen 10000 addrgenmode none
  on "$1" ip link set eth0 up
  on "$1" ip address add "$(address_of "$1" 4)/24" dev eth0
  on "$1" ip address add "$(address_of "$1" 6)/64" dev eth0 nodad
  on "$1" ip address add "fe80::$1/64" dev eth0 nodad
}

make_line() {  # make_line HOST HOST: starts wire_line; main.cc describes the format of HOST
  local answer
  mkfifo "$work/line.in" "$work/line.out"
  "$VB_PREFIX/tests/wire/wire_line" --a "$1" --b "$2" --seed "$line_seed" --pcap "$work/line" \
    <"$work/line.in" >"$work/line.out" &
  line_pid=$!
  exec {line_in}>"$work/line.in" {line_out}<"$work/line.out"
  read -r answer <&$line_out || fail "the line did not start"
}

second_link() {
  local host number=1
  ip link add eth1 netns "${host_pid[a]}" type veth peer name eth1 netns "${host_pid[b]}" 2>"$work/ip" ||
    skip "no veth interfaces here: $(cat "$work/ip")"
  for host in a b; do
    on $host ip address add 10.78.0.$number/24 dev eth1
    on $host ip address add fd78::$number/64 dev eth1 nodad
    on $host ip link set eth1 up
    number=2
  done
}

make_hosts() {
  make_host a
  make_host b
  make_line "/proc/${host_pid[a]}/ns/net" "/proc/${host_pid[b]}/ns/net"
  configure_host a "${1:-1500}"
  configure_host b "${1:-1500}"
}

line() {
  local answer
  echo "$1" >&$line_in
  read -r answer <&$line_out || fail "the line has ended"
  [ "$answer" = ok ] || fail "line '$1': $answer"
}
line_counts() {
  local ab ba
  echo counts >&$line_in
  read -r ab <&$line_out && read -r ba <&$line_out || fail "the line has ended"
  echo "$ab; $ba"
}
captures() {
  exec {line_in}>&-
  until_true 10 gone "$line_pid" || fail "the line does not end"
}
fields() {
  tshark -r "$work/line.$1.pcap" -Y "$2" -T fields "${@:3}" 2>"$work/tshark" || fail "tshark: $(cat "$work/tshark")"
}
check_captures() {
  local host packet_count malformed
  captures
  for host in a b; do
    packet_count=$(python3 "$VB_SOURCE/tests/wire/check_capture.py" "$work/line.$host.pcap" \
      "$(address_of $host 4)" "$(address_of $host 6)" "fe80::$host") || fail "the capture of host $host"
    [ "$packet_count" -gt 0 ] || fail "the capture of host $host has no RoCEv2 packet that the host has sent"
    malformed=$(tshark -r "$work/line.$host.pcap" --disable-protocol rpcordma -Y _ws.malformed \
      2>"$work/tshark") || fail "tshark: $(cat "$work/tshark")"
    [ -z "$malformed" ] || fail "malformed packets: $malformed"
    echo "host $host: $packet_count packets sent, every ICRC right, none malformed"
  done
}
