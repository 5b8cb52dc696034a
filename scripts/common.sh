# shellcheck shell=bash disable=SC2034
# What demo.sh, test.sh and scripts/arm64_sysroot.sh share: package lists, their installation on
# Debian and Ubuntu, building a preset. Sourced, never run.

# Libraries that libadder is made of: cmake/dependencies.cmake.
ADDER_RUNTIME_PACKAGES=(libcpuinfo-dev libpcre2-dev libpthreadpool-dev libutf8proc-dev libxxhash-dev
  rapidjson-dev)
# Everything that builds the library and the command.
ADDER_BUILD_PACKAGES=(g++ cmake ninja-build pkg-config libcli11-dev "${ADDER_RUNTIME_PACKAGES[@]}")
ADDER_TEST_PACKAGES=(libgtest-dev libbenchmark-dev python3)
# Builds with sanitizers and fuzzers; formatting.
ADDER_CLANG_PACKAGES=(clang clang-format)
# Cross build and emulation. The second list is unpacked for arm64 by scripts/arm64_sysroot.sh.
ADDER_CROSS_PACKAGES=(g++-aarch64-linux-gnu qemu-user)
ADDER_ARM64_PACKAGES=(libgtest-dev libbenchmark-dev libcli11-dev)

# adder_install PACKAGE...: installs those that are missing; does nothing when none is.
adder_install() {
  local missing=() sudo=() package
  for package in "$@"; do
    if [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" != installed ]; then
      missing+=("$package")
    fi
  done
  if [ ${#missing[@]} -eq 0 ]; then return 0; fi
  if ! command -v apt-get >/dev/null; then
    echo "This script installs packages with apt-get, which is not here. Install these yourself" >&2
    echo "(Debian names) and build as CONTRIBUTING.md says: ${missing[*]}" >&2
    return 1
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null; then
      echo "Packages are missing, and this is neither root nor is there sudo. As root, run:" >&2
      echo "  apt-get install --no-install-recommends ${missing[*]}" >&2
      return 1
    fi
    sudo=(sudo)
  fi
  echo "Installing packages: ${missing[*]}"
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update &&
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
      apt-get -qq install --yes --no-install-recommends "${missing[@]}" >/dev/null
}

# Clang for the sanitizer builds. Where the sanitizers' runtime is a package of its own (Debian 12,
# Ubuntu 24.04), its name carries the version.
adder_install_clang() {
  adder_install "${ADDER_CLANG_PACKAGES[@]}"
  local runtime
  runtime=libclang-rt-$(clang -dumpversion | cut -d. -f1)-dev
  if [ -n "$(apt-cache show "$runtime" 2>/dev/null)" ]; then
    adder_install "$runtime"
  fi
}

# adder_build PRESET [ARGUMENT...]: configures and builds build/PRESET; arguments are for the build.
adder_build() {
  local preset=$1
  shift
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
  fi
  echo "Building build/$preset"
  cmake --preset "$preset" --log-level=NOTICE >/dev/null && cmake --build "build/$preset" "$@"
}
