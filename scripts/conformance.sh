#!/usr/bin/env bash
# Runs the conformance suite against the release build: its self-test first, then every case but those that
# tests/disputed.md lists. Arguments go to the suite, for example: scripts/conformance.sh --only 106 -v
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "${SEQCAST_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/seqcast}")
python=$("$root/scripts/python.sh")

# The suite takes "223" for 223 and 223b alike; a pattern with one bracket means the number itself.
disputed=$(sed -nE 's/^\| *([A-Z]*)([0-9])([0-9]*[a-z]*) *\|.*/\1[\2]\3/p' "$root/tests/disputed.md" | paste -sd,)
echo "conformance: $bin; left out (tests/disputed.md): ${disputed:-none}"

cd "$root/tests/conformance"
"$python" -B -m unittest envelope test_model
exec "$python" -B run.py --bin "$bin" --keep-going ${disputed:+--skip "$disputed"} "$@"
