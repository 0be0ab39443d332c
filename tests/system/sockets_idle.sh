#!/bin/bash
# ctest: PLAIN
# Each idle connection must use only three pages: one of both ends, and one of each end.  The socket service frees all
# other pages, and later bytes must arrive unchanged.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
need python3
count=800 bytes=150000
[ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 2048 ] || skip "too few file descriptors are allowed here"
ulimit -Sn "$(ulimit -Hn)"
export VERBENA_SOCKETS_RING_IDLE=0.3

service() { verbena sockets stat --json | python3 -c 'import json, sys; print(json.load(sys.stdin)["service"][sys.argv[1]])' "$1"; }
# memory_kib PID...: prints the memory of processes in KiB.  Each shared page counts once.
memory_kib() {
  python3 - "$@" <<'PY'
import pathlib, sys
rollups = (pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines() for pid in sys.argv[1:])
print(sum(int(line.split()[1]) for lines in rollups for line in lines if line.startswith("Pss:")))
PY
}
# has_exchanged COUNT: succeeds if the programs have exchanged bytes COUNT times, and now wait for a line.
has_exchanged() { [ "$(grep -c '^holding' "$work/out")" -eq "$1" ]; }
# Succeeds if the service has freed all pages but three of each connection, which have no bytes of the program.
only_first_pages() { [ "$(service resident_bytes)" -eq $((count * 3 * 4096)) ]; }

# The first 16 connections have rings of 8 MiB, the next 512 of 1 MiB, and the others of 128 KiB.
all_rings=$((count * 3 * 4096 + 2 * 1024 * (16 * 8192 + 512 * 1024 + (count - 16 - 512) * 128)))

mkfifo "$work/in"
start run --sockets -- "$VB_PREFIX/bench/idle_sockets" $count $bytes <"$work/in" >"$work/out" 2>&1 &
program=$!
exec {to}>"$work/in"
# In three rounds, each connection uses a page for each direction three times.  On a busy machine, most bytes go by TCP,
# and more rounds are needed.
wanted=$((3 * count * 2 * 4096))
exchanges=0 freed=0 round=0
while [ $((++round)) -le 3 ] || [ "$freed" -lt $wanted ]; do
  [ $round -le 40 ] || fail "only $freed of $wanted bytes were freed: $(verbena sockets stat)"
  until_true 60 has_exchanged $((exchanges + 1)) || fail "round $round: $(cat "$work/out")"
  # On a busy machine, the programs may have to exchange bytes several times before all connections have rings.
  until [ "$(service pairs)" -eq $count ]; do
    [ $((++exchanges)) -lt 60 ] || fail "not all connections have a ring: $(verbena sockets stat)"
    send_newline "$to"
    until_true 60 has_exchanged $((exchanges + 1)) || fail "round $round: $(cat "$work/out")"
  done
  [ "$(service memory_bytes)" -eq $all_rings ] || fail "the rings are not $all_rings bytes: $(verbena sockets stat)"
  until_true 20 only_first_pages || fail "round $round: memory is not freed: $(verbena sockets stat)"
  read -r _ _ _ client _ server < <(tail -1 "$work/out")
  kib_left=$(memory_kib "$client" "$server" "$(service pid)")
  # Each connection has three pages, and some memory of the service.  The rest belongs to the three programs themselves.
  [ "$kib_left" -lt $((count * 16 + 16384)) ] || fail "round $round: $kib_left KiB are left of $count connections"
  freed=$(service given_back_bytes)
  echo "round $round: $kib_left KiB, $freed bytes freed so far"
  send_newline "$to"
  exchanges=$((exchanges + 1))
done
exec {to}>&-
wait $program || fail "the program: exit code $?, $(cat "$work/out")"
