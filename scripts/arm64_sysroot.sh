#!/usr/bin/env bash
# Makes a folder with the arm64 packages that Adder is cross-built against, for CMake's
# ADDER_SYSROOT. Needs no root and leaves the system's package configuration alone: apt works on
# lists of its own below the folder. The C and C++ libraries come from the cross compiler.
set -euo pipefail

usage() {
  cat <<'HELP'
Usage: scripts/arm64_sysroot.sh [FOLDER]

Downloads and unpacks the arm64 libraries into FOLDER (default build/arm64-sysroot). Does nothing
when the folder is complete already; remove it to make it anew.

Environment: ADDER_ARM64_MIRROR  package mirror instead of deb.debian.org or ports.ubuntu.com
HELP
}
case "${1:-}" in -h | --help) usage; exit 0 ;; -*) usage >&2; exit 2 ;; esac

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
source "$root/scripts/common.sh"
mkdir -p "${1:-$root/build/arm64-sysroot}"
sysroot=$(cd "${1:-$root/build/arm64-sysroot}" && pwd)
packages="${ADDER_RUNTIME_PACKAGES[*]} ${ADDER_ARM64_PACKAGES[*]}"

stamp=$sysroot/.packages
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$packages" ]; then
  echo "arm64 sysroot: $sysroot is up to date"
  exit 0
fi

source /etc/os-release
case $ID in
  debian) mirror=http://deb.debian.org/debian components="main" ;;
  ubuntu) mirror=http://ports.ubuntu.com/ubuntu-ports components="main universe" ;;
  *) echo "arm64 sysroot: neither Debian nor Ubuntu but $ID" >&2; exit 1 ;;
esac
mirror=${ADDER_ARM64_MIRROR:-$mirror}

apt=$sysroot/.apt
rm -rf "$apt"
mkdir -p "$apt/lists/partial" "$apt/archives/partial"
echo "deb [signed-by=/usr/share/keyrings/$ID-archive-keyring.gpg] $mirror $VERSION_CODENAME $components" \
  >"$apt/sources.list"
# What the cross compiler brings counts as installed.
for package in libc6 libc-dev libc6-dev libgcc-s1 libstdc++6; do
  printf 'Package: %s\nStatus: install ok installed\nVersion: 999\nArchitecture: arm64\n' "$package"
  printf 'Maintainer: none\nDescription: from the cross compiler\n\n'
done >"$apt/status"
cat >"$apt/apt.conf" <<CONF
APT::Architecture "arm64";
APT::Architectures { "arm64"; };
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::State "$apt";
Dir::State::lists "$apt/lists";
Dir::State::status "$apt/status";
Dir::Cache "$apt";
Dir::Etc::sourcelist "$apt/sources.list";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
CONF
export APT_CONFIG=$apt/apt.conf
apt-get -qq update
# shellcheck disable=SC2086  # one word per package
apt-get -qq install --yes --no-install-recommends --download-only $packages
for package in "$apt"/archives/*.deb; do
  dpkg -x "$package" "$sysroot"
done
rm -rf "$apt"
echo "$packages" >"$stamp"
echo "arm64 sysroot: made $sysroot"
