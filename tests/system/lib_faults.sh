# Defines functions for tests of `verbena fabric fault`.  Source lib.sh first.
on() { verbena run --node "$1" --verbose -- "${@:2}"; }
start_on() { start run --node "$1" --verbose -- "${@:2}"; }
# counter NAME: prints a counter of the fabric.
counter() { verbena fabric show --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["fabric"]["counters"][sys.argv[1]])' "$1"; }
# cause_fault TEXT ARGUMENT...: runs `verbena fabric fault` with the arguments.  It must succeed and print the text.
cause_fault() {
  local text=$1
  verbena fabric fault "${@:2}" >"$work/out" 2>&1 || fail "fault ${*:2}: $(cat "$work/out")"
  [ "$(cat "$work/out")" = "$text" ] || fail "fault ${*:2} prints: $(cat "$work/out")"
}
# expect_refusal TEXT ARGUMENT...: runs `verbena fabric fault` with the arguments.  It must fail with a message that has
# this text.
expect_refusal() {
  if verbena fabric fault "${@:2}" >"$work/out" 2>&1; then fail "fault ${*:2} works: $(cat "$work/out")"; fi
  grep -qF -- "$1" "$work/out" || fail "fault ${*:2} prints: $(cat "$work/out")"
}
# shows TEXT: succeeds if `verbena fabric show` prints the text.
shows() { verbena fabric show >"$work/show" && grep -qF "$1" "$work/show"; }
# forwarded_more_than COUNT: succeeds if the fabric has forwarded more than COUNT packets.
forwarded_more_than() { [ "$(counter forwarded)" -gt "$1" ]; }
# wait_traffic: waits until the fabric has forwarded 500 further packets.
wait_traffic() { until_true 60 forwarded_more_than "$(($(counter forwarded) + 500))" || fail "no packets: $(cat "$work/client")"; }
# listens HOST PORT: succeeds if a program on a host of the fabric "lab" listens on the port.
listens() { VERBENA_FABRIC=lab VERBENA_NODE=$1 verbena ps | grep -q "listening.*:$2\b"; }
wait_listens() { until_true 20 listens "$1" "$2" || fail "nothing listens on port $2 of host $1: $(cat "$work/server")"; }
# listens_tcp PORT: succeeds if a program of this machine listens on the TCP port.
listens_tcp() { ss -ltnH "sport = :$1" | grep -q .; }
# end_program PID: ends a program of the test.
end_program() {
  kill "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}
