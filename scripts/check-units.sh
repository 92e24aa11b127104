#!/usr/bin/env bash
# Checks scripts/systemd: `systemd-analyze verify` has nothing to say, the template differs from the service only where
# it must, and the configuration is valid.
# Usage: scripts/check-units.sh
set -uo pipefail
cd "$(dirname "$0")/systemd" || exit 1
target=${CARGO_TARGET_DIR:-../../target}
failed=0 passed=0
verdict() { # NAME OUTPUT: empty output is good
    if [ -z "$2" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED %s:\n%s\n' "$1" "$2"
    fi
}

# The template is the service, but for its instance.
instance='^#|^$|%i|^Description=|^StateDirectory=|^ExecStart=|^Environment'
verdict "seqcast@.service is seqcast.service" \
    "$(diff <(grep -vE "$instance" seqcast.service) <(grep -vE "$instance" seqcast@.service))"

binary=$target/release/seqcast
[ ! "$target/debug/seqcast" -nt "$binary" ] || binary=$target/debug/seqcast
[ ! -x "$binary" ] || verdict "seqcast.toml" "$("$binary" check --config seqcast.toml 2>&1 >/dev/null)"

if ! command -v systemd-analyze >/dev/null; then
    echo "!!! systemd-analyze IS NOT HERE: the units were NOT verified (Debian: apt-get install systemd)"
else
    version=$(systemd-analyze --version | awk 'NR == 1 { print $2 }')
    echo "systemd-analyze of systemd $version"
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    # The program need not be installed here, so another one stands in for it.
    for unit in seqcast.service seqcast.socket seqcast-admin.socket seqcast@.service; do
        sed 's:^ExecStart=/usr/local/bin/seqcast:ExecStart=/bin/true:' "$unit" >"$folder/$unit"
    done
    mv "$folder/seqcast@.service" "$folder/seqcast@0-3.service"
    cp "$folder/seqcast@0-3.service" "$folder/seqcast@5-5.service"
    verify() { # Says also what is a warning only, for which the exit code is 0.
        verdict "$1" "$(SYSTEMD_UNIT_PATH=$folder: systemd-analyze verify --man=no "$folder/$1" 2>&1 |
            grep -F -e "$folder" -e seqcast)"
    }
    for unit in seqcast.service seqcast.socket seqcast-admin.socket seqcast@0-3.service seqcast@5-5.service; do
        verify "$unit"
    done
    if [ "$version" -ge 253 ]; then
        mkdir "$folder/seqcast.service.d"
        cp notify-reload.conf "$folder/seqcast.service.d/"
        verify seqcast.service
    else
        echo "notify-reload.conf is for systemd 253 and later; not verified"
    fi
    # The check itself: a unit with an option that does not exist must not pass.
    sed 's/^WatchdogSec=/WatchdogSecs=/' "$folder/seqcast.service" >"$folder/canary.service"
    canary=$(SYSTEMD_UNIT_PATH=$folder: systemd-analyze verify --man=no "$folder/canary.service" 2>&1 |
        grep -F WatchdogSecs)
    verdict "the check finds its canary" "$([ -n "$canary" ] || echo "an unknown option was let pass")"
fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
