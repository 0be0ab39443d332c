#!/bin/bash
# ctest: PLAIN
# Debian's diagnostic tools must find the same subnet on Verbena as on ibsim, from one netlist and under OpenSM.  Only
# two things may differ: ibsim presets LIDs, and its ports report other supported widths and speeds.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
unset VERBENA_LINK  # it may be udp, but programs on a fabric exchange packets only by lanes
need ibsim ibsim-run opensm ibnetdiscover ibhosts ibswitches iblinkinfo
export TMPDIR=$work
mkdir "$work/ours" "$work/theirs"

verbena fabric make --fat-tree 8 >"$work/tree.net"
verbena fabric up "$work/tree.net" >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
verbena run --node host1 -- ibnetdiscover >"$work/named.net" || fail "ibnetdiscover: $(cat "$work/named.net")"
verbena fabric down >/dev/null

# store_output DIRECTORY COMMAND...: stores the output of the tools, without LIDs, times, and supported widths and
# speeds.
store_output() {
  local directory=$1 tool
  shift
  for tool in ibnetdiscover ibhosts ibswitches iblinkinfo; do
    "$@" timeout 60 $tool 2>"$work/problems" >"$work/output" || fail "$* $tool ends with $?: $(cat "$work/problems")"
    grep -v '^# ' "$work/output" | sed -E 's/\blid [0-9]+/lid N/g; s/ +[0-9]+ +([0-9]+\[)/ LID \1/g; s/\([^()]*\)$//' |
      sort >"$work/$directory/$tool"
  done
}

# In this file the names of hosts are their GUIDs, so only the fabric can tell on which node OpenSM runs.
verbena fabric up "$work/named.net" --name named >"$work/up" || fail "the fabric does not come up: $(cat "$work/up")"
node=$(verbena fabric show named --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["fabric"]["managers"][0]["node"])')
store_output ours verbena run --node "$node" --
verbena fabric down >/dev/null

cd "$work" # umad2sim, the library of ibsim-run, writes its sysfs to the working directory
mkfifo "$work/console"
ibsim -s "$work/named.net" <"$work/console" >"$work/ibsim" 2>&1 &
simulator=$!
exec 9>"$work/console"
export SIM_HOST=$node OSM_TMP_DIR=$work/theirs OSM_CACHE_DIR=$work/theirs
ibsim_answers() { timeout 10 ibsim-run ibnetdiscover >/dev/null 2>&1; }
until_true 20 ibsim_answers || fail "ibsim does not answer: $(cat "$work/ibsim")"
ibsim-run opensm -f "$work/theirs/log" -s 0 >"$work/opensm" 2>&1 &
manager=$!
all_active() { ibsim-run iblinkinfo 2>/dev/null >"$work/links" && grep -q Active "$work/links" && ! grep -qE 'Initialize|Armed' "$work/links"; }
until_true 30 all_active || fail "OpenSM on ibsim: $(cat "$work/opensm" "$work/links")"
store_output theirs ibsim-run
kill $manager
wait $manager 2>/dev/null || true
exec 9>&-
kill $simulator 2>/dev/null || true
wait $simulator 2>/dev/null || true

for tool in ibnetdiscover ibhosts ibswitches iblinkinfo; do
  [ -s "$work/ours/$tool" ] || fail "$tool prints nothing"
  diff "$work/theirs/$tool" "$work/ours/$tool" >"$work/differences" || fail "$tool differs: $(cat "$work/differences")"
done
