#!/bin/bash
# Checks that all installed programs and libraries of clients.txt find the symbols of Debian's libraries in ours.
# Arguments: the directory of our libraries.  VB_PRELOAD: a sanitizer's runtime, or nothing.
set -u
here=$(dirname "$0")
found=0
faults=0
while read -r client; do
  [[ -e $client ]] || continue
  output=$(LD_LIBRARY_PATH=$1 LD_PRELOAD=${VB_PRELOAD:-} ldd -r "$client" 2>&1)
  # Counts the clients that are linked with our libraries, so that the test fails if ldd fails.
  if grep -qF "=> $1/" <<<"$output"; then found=$((found + 1)); fi
  # Finds undefined symbols and versions, and libraries that were not found or are not ours.
  problems=$(grep -E '(undefined symbol|symbol .* version|version .* not found|no version information).*' <<<"$output" |
        grep -E 'ibv_|rdma_|umad_|verbs_|execute_ioctl|IBVERBS|RDMACM|IBUMAD|VERBENA|libibverbs|librdmacm|libibumad|libverbena')
  problems+=$(grep -E '(libibverbs|librdmacm|libibumad|libverbena)\.so\.[0-9]+ =>' <<<"$output" | grep -vF "=> $1/")
  if [[ -n $problems ]]; then
    echo "$client: $problems"
    faults=1
  fi
done < <(grep -v '^#' "$here/clients.txt")
echo "$found installed clients are linked with our libraries"
if (( found < 10 )); then
  echo "too few for a test: install ibverbs-utils and rdmacm-utils"
  faults=1
fi
exit $faults
