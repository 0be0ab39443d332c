#!/bin/bash
# Checks that the two libraries export the same names, versions and defaults as Debian's, and the
# functions that rdma-core 60 has added to librdmacm, and nothing else.
# Arguments: the directory of the libraries.
set -u
export LC_ALL=C
here=$(dirname "$0")
faults=0
for library in libibverbs librdmacm; do
  if ! diff <(grep -v '^#' "$here/exports-$library.txt" | sort) \
      <(nm -D --defined-only --with-symbol-versions "$1/$library.so.1" |
        awk '$2 != "A" { print $NF }' | sort); then
    echo "$library.so.1: < is missing, > should not be there"
    faults=1
  fi
done
exit $faults
