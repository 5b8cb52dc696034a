#!/usr/bin/env bash
# The C program in README.md compiles against the public header without a warning.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

program=$(awk '/^```c$/ { inside = 1; next } /^```$/ { inside = 0 } inside' README.md)
[[ $program == *adder_* ]] || { echo "README.md has no C program that uses Adder"; exit 1; }
printf '%s\n' "$program" |
  "${CC:-cc}" -std=c11 -Wall -Wextra -Werror -fsyntax-only -I runtime/include -x c -
