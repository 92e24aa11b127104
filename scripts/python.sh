#!/usr/bin/env bash
# Prints the path of a Python interpreter that has the packages of scripts/requirements.txt. The virtual environment
# is made once, in the user's cache, under the hash of that file.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/seqcast
version=$(python3 -c 'import platform; print(platform.python_version())')
hash=$(sha256sum "$here/requirements.txt" | cut -c1-12)
venv=$cache/venv-$version-$hash

if [ ! -e "$venv/complete" ]; then
    rm -rf "$venv"
    mkdir -p "$cache"
    python3 -m venv "$venv" >&2 || {
        echo "python.sh: python3 -m venv failed; on Debian: apt-get install python3-venv" >&2
        exit 1
    }
    "$venv/bin/pip" install --quiet --disable-pip-version-check --requirement "$here/requirements.txt" >&2
    touch "$venv/complete"
fi
echo "$venv/bin/python"
