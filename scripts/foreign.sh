#!/usr/bin/env bash
# Clients that other people wrote, against the release build on free ports: the npm package ws under Node, the PyPI
# package websockets under Python. Both bring their own FlatBuffers.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
bin=$(realpath "${SEQCAST_BIN:-${CARGO_TARGET_DIR:-$root/target}/release/seqcast}")
python=$("$root/scripts/python.sh")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

cp "$root"/tests/foreign/* "$work"
(cd "$work" && npm ci --silent --no-audit --no-fund)

"$bin" serve --config "$work/server.toml" --ready-file "$work/ready.json" >"$work/log" 2>&1 &
server=$!
for _ in $(seq 100); do
    [ ! -s "$work/ready.json" ] || break
    kill -0 "$server" 2>/dev/null || break
    sleep 0.05
done
[ -s "$work/ready.json" ] || { echo "foreign.sh: the server did not start:" >&2; tail -5 "$work/log" >&2; exit 1; }
read -r listen admin < <("$python" -c \
    'import json, sys; ready = json.load(open(sys.argv[1])); print(ready["listen"][0], ready["admin"])' "$work/ready.json")
export SEQCAST_URL=ws://$listen/ws SEQCAST_ADMIN=http://$admin

cd "$work"
node node.mjs | tee node.out || true
"$python" -B python.py | tee python.out || true
kill -0 "$server" 2>/dev/null || echo "FAIL the server died: $(tail -1 log)" | tee -a python.out
passed=$(cat node.out python.out | grep -c '^ok ' || true)
failed=$(cat node.out python.out | grep -c '^FAIL ' || true)
expected=$(grep -cE '^  async "|^@case\(' node.mjs python.py | awk -F: '{ n += $2 } END { print n }')
[ $((passed + failed)) -ge "$expected" ] || { echo "FAIL only $((passed + failed)) of $expected cases ran"; failed=$((failed + 1)); }
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
