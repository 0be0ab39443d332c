#!/bin/bash
# Opens 1,500 connections to the agent that send nothing.  Programs of the same user must still be able to join.
. "$(dirname "$0")/lib.sh"
need ibv_devinfo rping python3
[ "$(ulimit -Hn)" = unlimited ] || [ "$(ulimit -Hn)" -ge 4096 ] || skip "too few file descriptors are allowed here"

start run -- rping -s -P >"$work/server" 2>&1 &
server=$!
wait_listening 7174
mkfifo "$work/in"
ulimit -Sn "$(ulimit -Hn)"
python3 -c '
import socket, sys
line = next(line.split() for line in open("/proc/net/unix") if "@verbena-" in line)
silent = []
for _ in range(1500):
    silent.append(socket.socket(socket.AF_UNIX, int(line[4], 16)))
    silent[-1].connect("\0" + line[-1][1:])
print("connected", flush=True)
sys.stdin.read()
' <"$work/in" >"$work/silent" 2>&1 &
silent=$!
exec {to}>"$work/in"
until_true 20 grep -qs . "$work/silent" || fail "1500 connections cannot be made"
grep -q connected "$work/silent" || fail "$(cat "$work/silent")"
for _ in 1 2 3 4 5; do
  verbena run -- timeout 20 ibv_devinfo >"$work/out" 2>&1 || fail "a program cannot join the agent: $(cat "$work/out")"
done
verbena run -- timeout 20 rping -c -a 127.0.0.1 -C 5 >"$work/out" 2>&1 || fail "rping: $(cat "$work/out")"
! gone $silent || fail "the silent connections have ended: $(cat "$work/silent")"
exec {to}>&-
wait $silent || fail "$(cat "$work/silent")"
kill $server
