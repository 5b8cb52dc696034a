#!/usr/bin/env bash
# Builds and runs every test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/common.sh

usage() {
  cat <<'HELP'
Usage: ./test.sh [--quick | --asan | --arm64 | --fuzz [SECONDS]]

Installs the Debian or Ubuntu packages that are missing (needs root or sudo), then:
  1. builds with g++ and -Werror into build/test and runs all tests;
  2. builds with clang++, AddressSanitizer and UndefinedBehaviorSanitizer into build/asan and runs
     all tests;
  3. builds for 64-bit ARM into build/arm64-cross and runs the tests that are not labelled heavy
     under qemu-aarch64 as cortex-a72, cortex-a76 and max (on an ARM machine stage 1 does that).

  --quick           stage 1 only
  --asan            stage 2 only
  --arm64           stage 3 only
  --fuzz [SECONDS]  only: builds the libFuzzer targets and runs each for SECONDS (180)

One test by name: ctest --preset test -R NAME, after a build.
HELP
}

jobs=$(nproc)

test_native() {
  adder_install "${ADDER_BUILD_PACKAGES[@]}" "${ADDER_TEST_PACKAGES[@]}"
  adder_build test
  ctest --preset test -j "$jobs"
}

test_asan() {
  adder_install "${ADDER_BUILD_PACKAGES[@]}" "${ADDER_TEST_PACKAGES[@]}"
  adder_install_clang
  adder_build asan
  ctest --preset asan -j "$jobs"
}

test_arm64() {
  local cpu known ran=0
  if [ "$(uname -m)" = aarch64 ]; then
    echo "SKIPPED arm64 under qemu: this machine is one"
    return 0
  fi
  adder_install "${ADDER_BUILD_PACKAGES[@]}" "${ADDER_TEST_PACKAGES[@]}" "${ADDER_CROSS_PACKAGES[@]}"
  scripts/arm64_sysroot.sh
  adder_build arm64-cross
  known=$(qemu-aarch64 -cpu help || true)
  for cpu in cortex-a72 cortex-a76 max; do
    if [[ $known == *"$cpu"* ]]; then
      echo "arm64 tests as $cpu"
      QEMU_CPU=$cpu ctest --preset arm64-cross -j "$jobs"
      ran=$((ran + 1))
    else
      echo "SKIPPED arm64 tests as $cpu: this qemu does not know it"
    fi
  done
  if [ "$ran" -eq 0 ]; then
    echo "qemu-aarch64 knows none of these CPUs" >&2
    return 1
  fi
}

# Each target keeps its corpus in build/fuzz/corpus/NAME and starts from tests/data/fuzz/NAME too.
test_fuzz() {
  local seconds=$1 target name seeds ran=0
  adder_install "${ADDER_BUILD_PACKAGES[@]}" "${ADDER_TEST_PACKAGES[@]}"
  adder_install_clang
  adder_build fuzz --target fuzzers
  for target in build/fuzz/tests/fuzz_*; do
    name=$(basename "$target")
    if [ ! -f "$target" ] || [ ! -x "$target" ]; then continue; fi
    mkdir -p "build/fuzz/corpus/$name"
    seeds=()
    if [ -d "tests/data/fuzz/$name" ]; then seeds=("tests/data/fuzz/$name"); fi
    echo "$name: $seconds seconds"
    "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="build/fuzz/$name-" "build/fuzz/corpus/$name" "${seeds[@]}" \
      2>"build/fuzz/$name.log" || { tail -40 "build/fuzz/$name.log" >&2; return 1; }
    ran=$((ran + 1))
  done
  if [ "$ran" -eq 0 ]; then
    echo "there are no fuzz targets" >&2
    return 1
  fi
}

case "${1:-}" in
  "")
    test_native
    test_asan
    test_arm64
    ;;
  --quick) test_native ;;
  --asan) test_asan ;;
  --arm64) test_arm64 ;;
  --fuzz) test_fuzz "${2:-180}" ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
echo "All tests passed."
