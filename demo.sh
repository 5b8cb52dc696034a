#!/usr/bin/env bash
# From a fresh clone to a story: packages, Release build, conversion to INT8, text.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
source scripts/common.sh

usage() {
  cat <<'HELP'
Usage: ./demo.sh [PROMPT]

Installs the Debian or Ubuntu packages that are missing (needs root or sudo), builds Adder into
build/release, converts the story model in examples/models/stories-11m to INT8, and writes a story
with it. Safe to repeat; what is done already is not done again.
HELP
}
case "${1:-}" in -h | --help) usage; exit 0 ;; -*) usage >&2; exit 2 ;; esac
prompt=${1:-Once upon a time there was a little}

adder_install "${ADDER_BUILD_PACKAGES[@]}"
adder_build release --target adder_cli

source=examples/models/stories-11m
model=build/stories-11m-q8.adder
adder=build/release/adder
if [ ! -e "$model" ] || [ -n "$(find "$source" "$adder" -newer "$model" -print -quit)" ]; then
  "$adder" convert "$source" -o "$model" --type q8
fi

printf '\n$ %s run %s -p "%s" -n 200 --temperature 0.6 --seed 3\n\n' "$adder" "$model" "$prompt"
exec "$adder" run "$model" -p "$prompt" -n 200 --temperature 0.6 --seed 3
