#!/usr/bin/env bash
# Random clients that cut, stall, take over and return, against two publishers: every event of every session exactly
# once and in order, or a gap that the server declared. The seeds are FIRST_SEED (default 1) and those that follow it.
# Usage: scripts/soak.sh SECONDS SEEDS [--lossy] [--clients N]
set -euo pipefail
[ $# -ge 2 ] || { sed -n 's/^# Usage: /usage: /p' "$0" >&2; exit 2; }
seconds=$1 seeds=$2
shift 2
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "${SEQCAST_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/seqcast}")
python=$("$root/scripts/python.sh")

cd "$root/tests/conformance"
first=${FIRST_SEED:-1} failed=0
for ((seed = first; seed < first + seeds; seed++)); do
    "$python" -B soak.py --bin "$bin" --seconds "$seconds" --seed "$seed" "$@" || failed=$((failed + 1))
done
echo "$((seeds - failed)) passed, $failed failed"
[ "$failed" -eq 0 ]
