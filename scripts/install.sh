#!/usr/bin/env bash
# Installs what scripts/test.sh needs on Debian, and only what is missing. Rust itself is not installed: which toolchain
# builds the server is the user's decision.
set -euo pipefail

if ! command -v cargo >/dev/null; then
    echo "install.sh: cargo is not here; install Rust 1.95 or newer (https://rustup.rs) and run again" >&2
    exit 1
fi
for component in rustfmt clippy; do
    case $component in rustfmt) command=cargo-fmt ;; clippy) command=cargo-clippy ;; esac
    if ! "$command" --version >/dev/null 2>&1; then
        echo "install.sh: rustup component add $component"
        rustup component add "$component"
    fi
done

packages=()
command -v cc >/dev/null || packages+=(build-essential)
command -v git >/dev/null || packages+=(git)
command -v python3 >/dev/null || packages+=(python3)
command -v systemd-analyze >/dev/null || packages+=(systemd)
compgen -G '/usr/lib/*/libseccomp.so.2' >/dev/null || packages+=(libseccomp2)
python3 -c 'import ensurepip, venv' 2>/dev/null || packages+=(python3-venv)
command -v valgrind >/dev/null || packages+=(valgrind)
command -v node >/dev/null || packages+=(nodejs)
command -v npm >/dev/null || packages+=(npm)
if [ ${#packages[@]} -gt 0 ]; then
    if [ "$(id -u)" -ne 0 ]; then
        echo "install.sh: missing: ${packages[*]}; run as root: apt-get install ${packages[*]}" >&2
        exit 1
    fi
    echo "install.sh: apt-get install ${packages[*]}"
    apt-get update -q
    DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
fi
