# Makes a host with Verbena and a Linux machine with soft-RoCE for tests.  Source tests/system/lib.sh first.  VB_LINUX
# is the folder that image.py has made.
#
#   make_pair [MTU]               makes hosts a (Verbena) and b (Linux), and the line between them (tests/wire)
#   make_pair_with_api            makes such hosts, with the examples of the C++ API on b, in /verbena
#   make_linux_pair [MTU]         makes two hosts with Linux's soft-RoCE
#   make_linux_pair_with_verbena [MTU]    makes two hosts with soft-RoCE, and with Verbena on b, in /verbena
#   make_verbena_pair [MTU]       makes two Linux machines without soft-RoCE, with Verbena on both, in /verbena
#   run_program HOST PROGRAM ...  runs an RDMA program on a host, under `verbena run` if the host is not Linux
#   start_program HOST PROGRAM ... &      starts such a program in the background: `wait $!` returns its exit code
#   run_pair ...                  runs a server and its client on different hosts
source "$VB_SOURCE/tests/wire/lib.sh"
need python3 qemu-system-x86_64 tshark
[ -s "${VB_LINUX:?the folder of image.py}/initrd" ] || skip "no Linux machine in $VB_LINUX: image.py could not make one"

# guest ARGUMENT...: replaces the shell by guest.py.
guest() { exec python3 "$VB_SOURCE/tests/interop/linux/guest.py" "$@"; }
# is_linux HOST: succeeds if the host is a machine in QEMU that has started, whether or not it runs Verbena.
is_linux() { [ -e "$work/guest.$1/started" ]; }

guest_mib=512
make_guest() {  # make_guest NAME [OPTION...]: starts a machine, which connects to the line's socket guest.NAME.line
  local mac=52:54:00:77:00:01
  [ "$1" = a ] || mac=52:54:00:77:00:02
  # QEMU must not inherit the pipe of the line's commands.  The line ends when all writers have closed that pipe.
  start_qemu() { exec {line_in}>&- && guest start "$work/guest.$1" "$VB_LINUX" "$work/guest.$1.line" --memory "$guest_mib" --mac "${@:2}" >"$work/qemu.$1" 2>&1; }
  start_qemu "$1" $mac "${@:2}" &
  host_pid[$1]=$!
  until_true 20 is_linux "$1" || fail "QEMU: $(cat "$work/qemu.$1")"
}
# wait_guest NAME: waits until the machine runs commands.
wait_guest() {
  (guest run --timeout 120 "$work/guest.$1" true) || fail "guest $1: $(tail -n 5 "$work/guest.$1/console" "$work/qemu.$1")"
}
# configure_guest NAME MTU: configures a machine.  The RDMA device comes last, because it copies the interface's MTU.
configure_guest() {
  wait_guest "$1"
  configure_host "$1" "$2"
  on "$1" rdma link add rxe0 type rxe netdev eth0
}

# Packs Verbena, and further files of the build, for a guest.
pack_verbena() {  # pack_verbena [FILE...]
  python3 "$VB_SOURCE/tests/interop/linux/image.py" pack "$work/verbena.cpio" "$VB_PREFIX" bin/verbena \
    lib/verbena/verbenad lib/verbena/libverbena.so.0 lib/verbena/libibverbs.so.1 \
    lib/verbena/librdmacm.so.1 "$@" || fail "image.py pack"
}
make_verbena_pair() {
  local host
  make_line "guest:$work/guest.a.line" "guest:$work/guest.b.line"
  pack_verbena
  for host in a b; do make_guest $host --also "$work/verbena.cpio"; done
  for host in a b; do
    wait_guest $host
    on $host rmmod rdma_rxe
    configure_host $host "${1:-1500}"
  done
}
make_linux_pair_with_verbena() {
  make_line "guest:$work/guest.a.line" "guest:$work/guest.b.line"
  pack_verbena
  make_guest a
  make_guest b --also "$work/verbena.cpio"
  configure_guest a "${1:-1500}"
  configure_guest b "${1:-1500}"
}

make_pair() {
  make_host a
  make_line "/proc/${host_pid[a]}/ns/net" "guest:$work/guest.b.line"
  configure_host a "${1:-1500}"
  make_guest b
  configure_guest b "${1:-1500}"
}
make_pair_with_api() {
  make_host a
  make_line "/proc/${host_pid[a]}/ns/net" "guest:$work/guest.b.line"
  configure_host a 1500
  pack_verbena lib/verbena/adapter/libverbena.so.0 examples/{pingpong,rcopy,kvstore,chat} tests/api/live
  make_guest b --also "$work/verbena.cpio"
  configure_guest b 1500
}
make_linux_pair() {
  make_line "guest:$work/guest.a.line" "guest:$work/guest.b.line"
  make_guest a
  make_guest b
  configure_guest a "${1:-1500}"
  configure_guest b "${1:-1500}"
}

program_seconds=120  # the timeout of a program
start_program() {
  local host=$1
  shift
  # start_on replaces the shell, so the last command runs only if the host is a machine in QEMU.
  is_linux "$host" || start_on "$host" verbena run -- timeout "$program_seconds" "$@"
  guest run --timeout "$program_seconds" "$work/guest.$host" "$@"
}
run_program() { (start_program "$@"); }

# listens HOST ADDRESS PORT: succeeds if a program listens with the RDMA CM.  The address matters only on Linux.
listens() {
  if is_linux "$1"; then
    on "$1" rdma resource show cm_id | grep "LISTEN.*src-addr $2:$3" >/dev/null
  else
    on "$1" verbena ps | grep "listening.*:$3\b" >/dev/null
  fi
}
# is_listening_on HOST PORT: succeeds if a program listens at $address, which the test sets, with the RDMA CM.  If PORT
# has the form tcp:NUMBER, it is a TCP port.
is_listening_on() {
  case "$2" in
    tcp:*) on "$1" ss -ltnH "sport = :${2#tcp:}" | grep . >/dev/null ;;
    *) listens "$1" "$address" "$2" ;;
  esac
}

# Succeeds if rping has failed on Linux because of a race in rping: when rping ends, one thread closes the channel while
# another thread still reads it.  At that time rping has already verified the data.
ended_by_own_race() {  # ended_by_own_race HOST OUTPUT
  is_linux "$1" && grep -q 'DISCONNECT EVENT' "$2" &&
    grep -q 'rdma_get_cm_event: Bad file descriptor' "$2" && ! grep -qE 'mismatch|failed' "$2"
}

# run_pair WHAT SERVER PORT SERVER-COMMAND -- CLIENT-COMMAND: starts the server on host SERVER, waits until it listens
# on PORT (see is_listening_on), and runs the client on the other host.  Both must succeed.  WHAT names the run in
# messages.  In the commands, @ stands for $address.
run_pair() {
  local what=$1 server=$2 port=$3 client pid code command=() begun=$SECONDS
  client=$([ "$server" = a ] && echo b || echo a)
  shift 3
  while [ "$1" != -- ]; do command+=("${1/@/$address}") && shift; done
  shift
  start_program "$server" "${command[@]}" >"$work/server" 2>&1 &
  pid=$!
  until_true 30 is_listening_on "$server" "$port" || fail "$what: no server on $server: $(cat "$work/server")"
  run_program "$client" "${@/@/$address}" >"$work/client" 2>&1 || ended_by_own_race "$client" "$work/client" ||
    fail "$what (seed $line_seed): client on $client: $(tail -4 "$work/client"); server: $(tail -4 "$work/server"); $(line_counts)"
  code=0
  wait "$pid" || code=$?
  # Linux does not repeat the DREQ of a program that has ended.  If the DREQ is lost, the server never sees the end of
  # the connection, and ends by its timeout.
  if [ $code -eq 124 ] && [ -n "${dreq_may_be_lost:-}" ] && is_linux "$client"; then
    echo "$what: the DREQ was lost"
  elif [ $code -ne 0 ]; then
    ended_by_own_race "$server" "$work/server" ||
      fail "$what (seed $line_seed): server on $server, exit $code: $(tail -4 "$work/server")"
  fi
  echo "$what: ok ($((SECONDS - begun)) s)"
}

# Prints the index of the GID that has the host's address.  ibv_rc_pingpong needs this index.
gid_index() {  # gid_index HOST FAMILY
  local gid index
  gid=$(address_of "$1" "$2")
  [ "$2" = 6 ] || gid=::ffff:$gid
  index=$(run_program "$1" ibv_devinfo -v | sed -n "s/.*GID\[ *\([0-9]*\)\]:[[:space:]]*$gid,.*/\1/p")
  [ -n "$index" ] || fail "host $1 has no GID $gid: $(run_program "$1" ibv_devinfo -v)"
  echo "$index"
}

rping_round() {  # rping_round SERVER ROUNDS BYTES WHAT: runs rping once, with ROUNDS messages of BYTES bytes
  run_pair "$4, rping, server $1" "$1" 7174 rping -s -a @ -C "$2" -S "$3" -V -- \
    rping -c -a @ -C "$2" -S "$3" -V
}
