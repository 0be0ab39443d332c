#!/bin/bash
# Checks that no process can stop another one by the memory of a connection.  The processes of one end may be in
# different PID namespaces.  The peer may overwrite all memory that both ends share.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
program=$VB_PREFIX/tests/programs/shared_end

for mode in namespaces hostile; do
  (start run --sockets -- timeout 120 "$program" $mode) >"$work/out" 2>&1 ||
    fail "$mode: $(cat "$work/out")"
  echo "$mode: ok"
done
