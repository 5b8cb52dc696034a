#!/usr/bin/env bash
# Every source is as clang-format writes it. Versions differ in what they write; 14 is the one of
# Debian 12 and Ubuntu 22.04 and the project's. Exit status 77: skipped.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for clang_format in clang-format-14 clang-format; do
  if [[ $("$clang_format" --version 2>/dev/null) == *"version 14."* ]]; then
    find . \( -path './build*' -o -path './.*' -o -path ./shared \) -prune -o \
      \( -name '*.cc' -o -name '*.h' -o -name '*.c' \) -print0 |
      xargs -0 "$clang_format" --dry-run -Werror
    exit
  fi
done
echo "SKIPPED: no clang-format 14 here"
exit 77
