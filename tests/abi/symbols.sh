#!/bin/bash
# Checks that the three libraries export the same names, versions and defaults as Debian's, and the
# functions that later rdma-core has added to librdmacm and libibumad, and nothing else.
# Arguments: the directory of the libraries.
set -u
export LC_ALL=C
here=$(dirname "$0")
faults=0
for library in libibverbs.so.1 librdmacm.so.1 libibumad.so.3; do
  if ! diff <(grep -v '^#' "$here/exports-${library%.so.*}.txt" | sort) \
      <(nm -D --defined-only --with-symbol-versions "$1/$library" |
        awk '$2 != "A" { print $NF }' | sort); then
    echo "$library: < is missing, > should not be there"
    faults=1
  fi
done
exit $faults
