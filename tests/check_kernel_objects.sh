#!/bin/sh
# Checks that code for one instruction set stays in its own objects.
#   check_kernel_objects.sh symbols NM OBJECT...        each defines one global symbol, its table,
#                                                       and no weak one that a linker might share
#   check_kernel_objects.sh baseline OBJDUMP OBJECT...  no instruction beyond x86-64 or ARMv8.0
#                                                       that kernels use: AVX; dot products, 8-bit
#                                                       matrix multiplication, arithmetic on halves
set -u
check=$1 tool=$2
shift 2
if [ $# -eq 0 ]; then echo "no objects given"; exit 1; fi

failed=0
for object in "$@"; do
  case $check in
    symbols)
      listing=$("$tool" --extern-only --format=posix "$object") || exit 1
      weak=$(echo "$listing" | awk '$2 ~ /^[wWvVu]$/')
      defined=$(echo "$listing" | awk '$2 != "U"')
      if [ -n "$weak" ] || [ "$(echo "$defined" | wc -l)" -ne 1 ] ||
         ! echo "$defined" | grep -q 'Kernels'; then
        echo "$object: expected one global symbol, a table of kernels; found:"
        echo "$defined"
        failed=1
      fi ;;
    baseline)
      listing=$("$tool" --disassemble --no-show-raw-insn "$object") || exit 1
      case $listing in
        *x86-64*) beyond='^ *[0-9a-f]+:[[:space:]]+v[a-z]|%[yz]mm' ;;
        *aarch64*) beyond='[[:space:]]([us]u?dot|usmmla|[us]mmla|f[a-z]+[[:space:]]+v[0-9]+\.[48]h,[[:space:]]*v[0-9]+\.[48]h|[a-z]+[[:space:]]+z[0-9]+\.)' ;;
        *) echo "$object: neither x86-64 nor AArch64"; exit 1 ;;
      esac
      found=$(echo "$listing" | grep -E "$beyond" | head -n 5)
      if [ -n "$found" ]; then
        echo "$object: instructions that not every CPU has:"
        echo "$found"
        failed=1
      fi ;;
    *) echo "unknown check $check"; exit 1 ;;
  esac
done
exit $failed
