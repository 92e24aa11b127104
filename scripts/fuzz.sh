#!/bin/sh
# Runs the fuzz targets of fuzz/ one after the other.
#   scripts/fuzz.sh [SECONDS] [TARGET...]     default: 60 seconds each, all targets
# Needs cargo-fuzz (cargo install cargo-fuzz) and a C++ compiler; a nightly toolchain is not needed.
# New inputs go to fuzz/corpus-work (not in the repository); a crash is kept under fuzz/artifacts and ends the run.
set -eu
cd "$(dirname "$0")/.."
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- $(sed -n 's/^name = "\(.*\)"$/\1/p' fuzz/Cargo.toml | tail -n +2)
# cargo-fuzz asks for the sanitizer by an unstable flag; this lets the pinned stable compiler take it.
export RUSTC_BOOTSTRAP=1
for target in "$@"; do
    mkdir -p "fuzz/corpus-work/$target" "fuzz/corpus/$target"
    cargo fuzz run "$target" "fuzz/corpus-work/$target" "fuzz/corpus/$target" -- \
        -max_total_time="$seconds" -max_len=4096 -timeout=5 -rss_limit_mb=1024 -print_final_stats=1
done
