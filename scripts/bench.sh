#!/usr/bin/env bash
# Measures seqcast beside other servers on this machine: sets up what it needs on Debian, builds, runs, writes a folder of
# results and says where. Usage: scripts/bench.sh [OPTION of `seqcast-bench run`...]
#   scripts/bench.sh                        everything, about an hour
#   scripts/bench.sh --suite headline       the short list, about 20 minutes
#   scripts/bench.sh --works echo-100x100 --rounds 3
set -euo pipefail
cd "$(dirname "$0")/.."
target=${CARGO_TARGET_DIR:-$PWD/target}

needed=()
command -v cc >/dev/null && command -v c++ >/dev/null || needed+=(build-essential)
command -v git >/dev/null || needed+=(git)
command -v python3 >/dev/null || needed+=(python3)
command -v node >/dev/null || needed+=(nodejs)
command -v npm >/dev/null || needed+=(npm)
command -v taskset >/dev/null && command -v setpriv >/dev/null || needed+=(util-linux)
if [ ${#needed[@]} -gt 0 ]; then
    [ "$(id -u)" -eq 0 ] || { echo "bench.sh: run as root: apt-get install ${needed[*]}" >&2; exit 1; }
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${needed[@]}"
fi
command -v cargo >/dev/null || { echo "bench.sh: cargo is not here; install Rust 1.95 or newer (https://rustup.rs)" >&2; exit 1; }

cargo build --locked --release
cargo build --locked --release --package seqcast-bench
bench/peers/install.sh
# 10,000 connections on both sides of one machine.
hard=$(ulimit -Hn)
[ "$hard" = unlimited ] || [ "$hard" -ge 65536 ] || ulimit -Hn 65536 2>/dev/null || true

# A folder that the caller names is the caller's.
out=()
case " $* " in *" --out"*) ;; *)
    suite=full
    [[ " $* " =~ \ --suite[\ =]([a-z]+)\  ]] && suite=${BASH_REMATCH[1]}
    [[ " $* " == *" --works"* ]] && suite=selected
    folder=bench/results/$(date -u +%F)-$suite
    number=1
    while [ -e "$folder" ]; do number=$((number + 1)); folder=bench/results/$(date -u +%F)-$suite-$number; done
    out=(--out "$folder")
esac
exec "$target/release/seqcast-bench" run "${out[@]}" "$@"
