#!/bin/bash
# Checks that clang-format would not change the C++ files of src, include, libraries, tests, fuzz and bench.  With
# --fix, formats them.  Run from the repository.
set -euo pipefail
if ! command -v clang-format >/dev/null; then
  echo "skipped: clang-format is not installed (scripts/deps test installs it)"
  exit 77
fi
mode=(--dry-run -Werror)
[ "${1:-}" = --fix ] && mode=(-i)
folders=(src include libraries tests fuzz bench)
mapfile -d '' files < <(find "${folders[@]}" -type f \( -name '*.cc' -o -name '*.h' \) -print0 2>/dev/null || true)
[ ${#files[@]} -gt 0 ] || { echo "no files: run this script from the repository"; exit 1; }
printf '%s\0' "${files[@]}" | xargs -0 -n 50 -P 2 clang-format "${mode[@]}" ||
  { echo "to format them: bash tests/tidy/format.sh --fix"; exit 1; }
echo "${#files[@]} files are formatted"
