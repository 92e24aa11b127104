#!/usr/bin/env bash
# Runs the server under the filters that are shipped, scripts/seccomp.json and that of scripts/systemd/seqcast.service:
# it starts, an event goes round, it reloads, drains and saves its state. Without io_uring it must refuse to start and
# say why; what a server does not need must be refused. No container and no systemd is needed, so what they do besides
# is not shown. The program is the one in the target folder that was built last.
# Usage: scripts/check-sandbox.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
target=${CARGO_TARGET_DIR:-$PWD/target}
seqcast=$target/release/seqcast
[ ! "$target/debug/seqcast" -nt "$seqcast" ] || seqcast=$target/debug/seqcast
[ -x "$seqcast" ] || { echo "check-sandbox.sh: no $seqcast; cargo build first" >&2; exit 1; }
folder=$(mktemp -d)
server=
finish() {
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null
    rm -rf "$folder"
}
trap finish EXIT
passed=0 failed=0
verdict() { # NAME, then a command that must succeed
    if "${@:2}" >"$folder/out" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED %s:\n' "$1"
        cat "$folder/out" "$folder/log" 2>/dev/null
    fi
}
until_true() { # waits 20 s for a command to succeed
    for _ in $(seq 400); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.05
    done
    echo "never: $*"
    return 1
}
address() { sed -E "s/.*\"$1\":\[?\"([^\"]*)\".*/\1/" "$folder/ready"; }
serve() { # FILTER [--without NAME]...
    rm -f "$folder/ready"
    scripts/seccomp.py "$@" -- "$seqcast" serve --config "$folder/seqcast.toml" --cores 2 --ready-file "$folder/ready" \
        2>"$folder/log" &
    server=$!
}
# The subscriber gets the first event that is published after it has joined.
round_trip() {
    until_true test -s "$folder/ready" || return
    local data='{"symbol":"S","bid":1,"ask":2,"bidSize":3,"askSize":4,"ts":5}'
    timeout 30 "$seqcast" sub --url "ws://$(address listen)/ws" --topic x --count 1 >"$folder/event" &
    local subscriber=$!
    until_true sh -c "'$seqcast' pub --url 'http://$(address admin)' --topic x quote '$data' && test -s '$folder/event'" || return
    wait "$subscriber"
}
reload() {
    kill -HUP "$server" && until_true grep -q 'reload: nothing has changed' "$folder/log"
}
drain() {
    kill -TERM "$server"
    local code
    wait "$server"
    code=$?
    server=
    return "$code"
}
refuses() { # FILTER: without io_uring
    scripts/seccomp.py "$1" --without io_uring_setup -- "$seqcast" serve --config "$folder/seqcast.toml" 2>"$folder/log"
    [ $? -eq 1 ] && grep -q 'io_uring is forbidden: a seccomp filter refuses it' "$folder/log"
}
denied() { ! scripts/seccomp.py "$@"; }

cat >"$folder/seqcast.toml" <<EOF
[server]
listen = ["127.0.0.1:0", "unix:$folder/socket"]
[admin]
listen = "127.0.0.1:0"
[state]
file = "$folder/state"
EOF
filters=(scripts/seccomp.json)
if command -v systemd-analyze >/dev/null; then
    filters+=(scripts/systemd/seqcast.service)
else
    echo "!!! systemd-analyze IS NOT HERE: the filter of the unit was NOT tried (Debian: apt-get install systemd)"
fi
for filter in "${filters[@]}"; do
    serve "$filter"
    verdict "$filter: an event goes round" round_trip
    verdict "$filter: reload" reload
    verdict "$filter: drain" drain
    verdict "$filter: the state is saved" test -s "$folder/state"
    verdict "$filter: without io_uring it says why" refuses "$filter"
    verdict "$filter: no new namespace" denied "$filter" -- unshare --user true
    verdict "$filter: no mount" denied "$filter" -- mount -t tmpfs none "$folder"
    verdict "$filter: no other sockets" denied "$filter" -- python3 -c 'import socket; socket.socket(socket.AF_NETLINK)'
done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
