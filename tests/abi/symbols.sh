#!/bin/bash
# Checks that the three libraries export exactly the names, versions and default versions of exports-*.txt.  These files
# have the symbols of Debian's libraries, and the functions that later releases of rdma-core have added to librdmacm and
# libibumad.
# Arguments: the directory of our libraries.
set -u
export LC_ALL=C
here=$(dirname "$0")
faults=0
for library in libibverbs.so.1 librdmacm.so.1 libibumad.so.3; do
  if ! diff <(grep -v '^#' "$here/exports-${library%.so.*}.txt" | sort) \
      <(nm -D --defined-only --with-symbol-versions "$1/$library" |
        awk '$2 != "A" { print $NF }' | sort); then
    echo "$library: lines with < are missing, lines with > should not be exported"
    faults=1
  fi
done
exit $faults
