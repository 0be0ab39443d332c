#!/bin/bash
# Two builds of Verbena are on one host.  A program must replace an agent of the other build if no program uses that
# agent.  Otherwise the program must get an error that names both builds.
. "$(dirname "$0")/lib.sh"
need ibv_devinfo sed
export VERBENA_IDLE=60

# Makes another build: copies this build, and replaces the build id by another id of the same length.
id=$("$VB_PREFIX/lib/verbena/verbenad" --version | sed 's/^verbenad //')
other_id=$(echo "$id" | sed 's/[0-9a-f]\{8\}$/0ff0ff00/')
[ "$id" != "$other_id" ] && [ ${#id} -eq ${#other_id} ] || fail "no other build id could be made of '$id'"
mkdir "$work/other"
cp -a "$VB_PREFIX/bin" "$VB_PREFIX/lib" "$work/other/"
find "$work/other" -type f -exec sed -i "s/$id/$other_id/g" {} +
other_verbena() { (VB_PREFIX=$work/other; verbena "$@"); }

other_verbena run -- ibv_devinfo >"$work/info" 2>&1 || fail "the other build: $(cat "$work/info")"
other_verbena agent status | grep -q "build $other_id" || fail "not the other build's agent: $(other_verbena agent status)"

verbena run -- ibv_devinfo >"$work/info" 2>&1 || fail "an idle agent is not replaced: $(cat "$work/info")"
grep -q PORT_ACTIVE "$work/info" || fail "the port is not active: $(cat "$work/info")"
verbena agent status | grep -q "build $id" || fail "not our agent: $(verbena agent status)"

# A program of this build uses the agent.
mkfifo "$work/in"
start run -- "$VB_PREFIX/tests/programs/crowd" <"$work/in" >"$work/out" 2>&1 &
program=$!
exec {to}>"$work/in"
send_newline "$to"
until_true 20 grep -q made "$work/out" || fail "no QP: $(cat "$work/out")"
if other_verbena run -- ibv_devinfo >"$work/info" 2>&1; then
  grep -q "No IB devices found" "$work/info" || fail "served by an agent of another build: $(cat "$work/info")"
fi
grep -q "$id" "$work/info" && grep -q "$other_id" "$work/info" ||
  fail "the error does not name both builds: $(cat "$work/info")"
send_newline "$to"
exec {to}>&-
wait $program || fail "the program that used the agent: $(cat "$work/out")"
[ "$(grep -c made "$work/out")" -eq 2 ] || fail "the program could not continue: $(cat "$work/out")"

# An agent must also be replaced if it still has data of a program that has just ended.
other_verbena run -- ibv_devinfo >"$work/info" 2>&1 || fail "an agent whose programs have ended is not replaced: $(cat "$work/info")"
grep -q PORT_ACTIVE "$work/info" || fail "the port is not active: $(cat "$work/info")"
