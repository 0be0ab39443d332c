#!/bin/bash
# A full disk or a file size limit makes a capture incomplete.  `run --pcap` must report this and end with 125, and
# `agent status` must count the capture.  The program must run as without a capture.
. "$(dirname "$0")/lib.sh"
need rping mount

mkdir "$work/small"
mount -t tmpfs -o size=256k tmpfs "$work/small" || skip "no file system can be mounted here"
trap 'umount "$work/small"; rm -rf "$work"' EXIT
count_incomplete() { verbena agent status | sed -n 's/^captures_incomplete  *//p'; }

start run -- rping -s -P -S 9000 >"$work/server" 2>&1 &
server=$!
wait_listening 7174
# capture_client FILE ROUNDS: runs a client that is captured to the file.
capture_client() {
  local code=0
  verbena run --pcap "$1" -- rping -c -a 127.0.0.1 -C "$2" -S 9000 -V >"$work/client" 2>"$work/client.err" ||
    code=$?
  return $code
}

capture_client "$work/small/enough.pcapng" 1 || fail "a small capture: $(cat "$work/client.err")"
[ -z "$(count_incomplete)" ] || fail "a complete capture is counted as incomplete"
code=0
capture_client "$work/small/full.pcapng" 30 || code=$?
[ $code -eq 125 ] || fail "exit code $code: $(cat "$work/client.err")"
grep -q "full.pcapng' does not contain all packets: the capture is incomplete: No space left on device" \
  "$work/client.err" || fail "no line says that the capture is incomplete: $(cat "$work/client.err")"
[ "$(count_incomplete)" = 1 ] || fail "not counted: $(verbena agent status)"

# If the program fails, `run` must end with the program's exit code.
code=0
verbena run --pcap "$work/own.pcapng" -- bash -c 'exit 3' || code=$?
[ $code -eq 3 ] || fail "the program's exit code became $code"

# An agent that is started under a hard limit inherits that limit.
kill $server
wait $server || true
verbena agent stop >/dev/null
until_true 20 no_verbena_process || fail "the agent is still there"
code=0
(
  ulimit -f 100
  verbena run --pcap "$work/cut.pcapng" -- ibv_devinfo >/dev/null 2>"$work/cut.err"
) || code=$?
[ $code -eq 125 ] || fail "exit code $code under ulimit -f: $(cat "$work/cut.err")"
grep -q "cut.pcapng' does not contain all packets: the capture is incomplete" "$work/cut.err" ||
  fail "no line says that the capture is incomplete: $(cat "$work/cut.err")"
