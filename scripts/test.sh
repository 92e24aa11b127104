#!/usr/bin/env bash
# Everything that has to pass. Installs what it needs, runs every step even after one has failed, and ends with one line
# that counts. Usage: scripts/test.sh [STEP...]   (no STEP = all, in this order)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
target=${CARGO_TARGET_DIR:-$PWD/target}
logs=$target/test-logs
mkdir -p "$logs"

declare -A what=(
    [install]="missing packages" [io_uring]="the kernel's side" [fmt]="formatting" [dependencies]="licences, sources"
    [advisories]="known vulnerabilities" [clippy]="lints" [cargo]="unit, simulation, tidy and server tests"
    [loom]="every interleaving of a sleeper and its senders"
    [release]="release build" [instructions]="instructions of the pure core"
    [bench]="each scenario of the harness, for a moment"
    [units]="systemd units" [sandbox]="seccomp filters" [conformance]="black-box suite"
    [soak]="random clients" [foreign]="clients that are not ours"
    [generated]="generated code is fresh" [autobahn]="RFC 6455 test suite"
)
order=(install io_uring fmt dependencies advisories clippy cargo loom release instructions bench units sandbox
    conformance soak foreign generated autobahn)

step_install() { scripts/install.sh; }
step_io_uring() { scripts/io-uring.py; }
step_fmt() { cargo fmt --check; }
step_dependencies() {
    scripts/dependencies.py || return
    if command -v cargo-deny >/dev/null; then cargo deny --locked check licenses bans sources; fi
}
step_advisories() { scripts/advisories.sh; }
step_clippy() { cargo clippy --locked --workspace --all-targets --quiet -- -D warnings; }
step_cargo() { cargo test --locked --workspace --no-fail-fast; }
step_loom() { cargo test --locked --release --manifest-path loom/Cargo.toml --target-dir loom/target; }
step_release() { cargo build --locked --release; }
step_instructions() { scripts/instructions.py; }
step_bench() {
    cargo build --locked --release --package seqcast-bench || return
    bench/peers/install.sh --quick
    "$target/release/seqcast-bench" run --suite tiny
}
step_units() { scripts/check-units.sh; }
step_sandbox() { scripts/check-sandbox.sh; }
# More cores than this machine may have processors: it has to be right, not fast.
on_cores() {
    local cores
    for cores in $1; do
        echo "cores: $cores"
        SEQCAST_SERVER__CORES=$cores "${@:2}" || return
    done
}
step_conformance() { on_cores "1 2 4" scripts/conformance.sh; }
step_soak() { on_cores "1 4" scripts/soak.sh 10 1 && FIRST_SEED=3 on_cores 2 scripts/soak.sh 10 1 --lossy; }
step_foreign() { scripts/foreign.sh; }
step_generated() { FLATC=$(dirname "$(scripts/python.sh)")/flatc scripts/generate-control.sh --check; }
step_autobahn() { on_cores 2 scripts/autobahn.sh --if-possible 1 2 3 4 5 6 7 9 10; }

# Sums "N passed" and "N failed" of everything that was logged: cargo's result lines and those of the suites.
count() {
    cat "$logs"/*.log | grep -E '^test result:|^[0-9]+ passed, [0-9]+ failed' | grep -oE "[0-9]+ $1" |
        awk '{ n += $1 } END { print n + 0 }'
}

rm -f "$logs"/*.log
broken=()
[ $# -gt 0 ] || set -- "${order[@]}"
for name in "$@"; do
    [ -n "${what[$name]:-}" ] || { echo "test.sh: no step '$name'; there are: ${order[*]}" >&2; exit 2; }
    echo "== $name: ${what[$name]}"
    began=$SECONDS
    if "step_$name" 2>&1 | tee "$logs/$name.log"; then
        echo "== $name: ok, $((SECONDS - began)) s"
    else
        echo "== $name: FAILED, $((SECONDS - began)) s"
        broken+=("$name")
    fi
done

echo
[ ${#broken[@]} -eq 0 ] || echo "failed steps: ${broken[*]}"
failed=$(count failed)
[ ${#broken[@]} -eq 0 ] || [ "$failed" -gt 0 ] || failed=${#broken[@]}
echo "$SECONDS s in all"
echo "$(count passed) passed, $failed failed"
[ ${#broken[@]} -eq 0 ] && [ "$failed" -eq 0 ]
