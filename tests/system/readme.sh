#!/bin/bash
# The first commands of README must work when a user pastes them into a shell.  The test changes only the path of the
# build.
. "$(dirname "$0")/lib.sh"
need rping

# Extracts the first indented block below "Your own program".
awk '/^## Your own program/ { on = 1 } on && /^    / { print; seen = 1 } seen && !/^    / { exit }' \
  "$VB_SOURCE/README.md" | sed 's/^    //' >"$work/lines"
grep -q '^verbena run -- rping -s &' "$work/lines" && grep -q '^verbena run -- rping -c' "$work/lines" ||
  fail "README begins with other lines: $(cat "$work/lines")"
mkdir "$work/bin"
cat >"$work/bin/verbena" <<E2
#!/bin/bash
LD_PRELOAD=${VB_PRELOAD:-} ASAN_OPTIONS=detect_leaks=0:verify_asan_link_order=0 exec "$VB_PREFIX/bin/verbena" "\$@"
E2
chmod +x "$work/bin/verbena"
# The path of this build replaces the path in README.
sed -i "s|^PATH=.*|PATH=$work/bin:\$PATH|" "$work/lines"
no_listener() { ! verbena ps | grep listening >/dev/null; }
for round in 1 2 3; do
  timeout 30 bash -e "$work/lines" >"$work/out" 2>&1 </dev/null || fail "round $round: $(cat "$work/out")"
  [ "$(grep -c '^ping data: ' "$work/out")" -eq 10 ] || fail "round $round: $(cat "$work/out")"
  # The server of these lines ends a moment after its client, and the server of the next round needs its port.
  until_true 20 no_listener || fail "round $round: the server does not end: $(verbena ps)"
done
echo "README's first lines work"
