#!/usr/bin/env bash
# Installs the servers that seqcast is measured beside into target/peers. Each one is optional: what this machine cannot
# have is said in one line and left out of the run. Usage: bench/peers/install.sh [--quick]
# --quick: what npm alone gives in a few seconds (ws, Socket.IO), nothing else.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
into=${SEQCAST_PEERS:-${CARGO_TARGET_DIR:-$root/target}/peers}
mkdir -p "$into"
quick=
case ${1:-} in
    --quick) quick=1 ;;
    "") ;;
    *) echo "usage: install.sh [--quick]" >&2; exit 2 ;;
esac

# without NAME WHY: a peer that this machine does not have.
without() { echo "without $1: $2"; }
# attempt NAME COMMAND...: runs it, its output in a log; says how it went.
attempt() {
    local name=$1 log=$into/$1.log
    shift
    if "$@" >"$log" 2>&1; then echo "have $name"; else without "$name" "$(tail -1 "$log") (all of it: $log)"; fi
}

debian() {
    command -v apt-get >/dev/null || { echo "no apt-get here"; return 1; }
    [ "$(id -u)" -eq 0 ] || { echo "needs root: apt-get install $*"; return 1; }
    apt-get install -q -y --no-install-recommends "$@"
}
nats() { command -v nats-server >/dev/null || [ -x /usr/sbin/nats-server ] || debian nats-server; }
nchan() {
    [ -n "$(find /usr/lib/nginx /usr/lib64/nginx /usr/share/nginx -name ngx_nchan_module.so 2>/dev/null)" ] ||
        debian nginx libnginx-mod-nchan
}
node_packages() {
    command -v npm >/dev/null || { echo "no npm here"; return 1; }
    cp "$here"/js/* "$into" && cd "$into" || return
    [ -z "$quick" ] || [ ! -d node_modules/ws ] || return 0
    npm ci --no-audit --no-fund --ignore-scripts ${quick:+--omit=optional}
}
bun() {
    set -- "$into"/node_modules/@oven/bun-linux-*/bin/bun
    [ -x "$1" ] || { echo "the registry has no binary for $(uname -m)"; return 1; }
    ln -sf "$1" "$into/bun" && "$into/bun" --version
}
tungstenite() {
    CARGO_TARGET_DIR=$into/build cargo build --locked --release --manifest-path "$here/tungstenite/Cargo.toml" &&
        cp "$into/build/release/tungstenite-peer" "$into/"
}
# The crate carries the source of uWebSockets. Like everything else here it is compiled for any processor of its kind.
uws() {
    local manifest crate
    manifest=$(cargo metadata --locked --format-version 1 --manifest-path "$here/uws/Cargo.toml" |
        python3 -c 'import json, sys
print(next(p["manifest_path"] for p in json.load(sys.stdin)["packages"] if p["name"] == "libuwebsockets-sys"))') || return
    crate=$(dirname "$manifest")/uWebSockets
    mkdir -p "$into/uws" && cd "$into/uws" || return
    cc -O3 -flto -DLIBUS_NO_SSL -I"$crate/uSockets/src" -c "$crate"/uSockets/src/*.c "$crate"/uSockets/src/eventing/*.c &&
        c++ -std=c++20 -O3 -flto=auto -DLIBUS_NO_SSL -DUWS_NO_ZLIB -I"$crate/src" -I"$crate/uSockets/src" \
            "$here/uws/main.cpp" ./*.o -o "$into/uws-peer"
}

attempt node-packages node_packages
[ -z "$quick" ] || exit 0
[ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null || apt-get update -q >"$into/apt.log" 2>&1
attempt bun bun
attempt nats nats
attempt nchan nchan
attempt tungstenite tungstenite
attempt uws uws
exit 0
