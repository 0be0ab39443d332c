#!/bin/bash
# Checks with abidiff that our libraries can replace Debian's.
# Arguments: the directory of our libraries.
set -u
if ! command -v abidiff >/dev/null; then
  echo "abidiff is not installed (package abigail-tools)"
  exit 77
fi
faults=0
for library in libibverbs.so.1 librdmacm.so.1 libibumad.so.3; do
  debian=/usr/lib/x86_64-linux-gnu/$library
  if [[ ! -e $debian ]]; then
    echo "Debian's $library is not installed"
    exit 77
  fi
  # Debian's library has no debug information, so only the symbols are compared.
  abidiff --no-added-syms --drop-private-types --no-unreferenced-symbols "$debian" "$1/$library" || faults=1
done
exit $faults
