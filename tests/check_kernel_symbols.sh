#!/usr/bin/env bash
# check_kernel_symbols.sh NM OBJECT...: each object of kernels for one instruction set exports its
# table and nothing else. A weak symbol there, say of a template, could be the copy that the linker
# keeps for the whole program, which then dies on a CPU without those instructions.
set -euo pipefail

nm=$1
shift
[ $# -gt 0 ] || { echo "no objects given"; exit 1; }
for object in "$@"; do
  symbols=$("$nm" --demangle --defined-only --extern-only "$object")
  if [[ $symbols != *" adder::k"*Kernels || $symbols == *$'\n'* ]]; then
    printf '%s exports more or less than one table:\n%s\n' "$object" "$symbols"
    exit 1
  fi
done
