#!/usr/bin/env python3
"""Checks what the build depends on against deny.toml: licences, sources, duplicated crates. Reads `cargo metadata`
alone, so it needs no network and no installation. Exit 1 names every crate that is not allowed and why."""
import json
import os
import re
import subprocess
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CRATES_IO = "registry+https://github.com/rust-lang/crates.io-index"


def packages(target):
    """Packages that are built for a target, development and build dependencies included."""
    out = subprocess.run(["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target],
                         cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    meta = json.loads(out)
    used = {n["id"] for n in meta["resolve"]["nodes"]}
    return [p for p in meta["packages"] if p["id"] in used]


def allowed(expression, allow):
    """True when an SPDX expression can be met with the allowed licences. "A/B" is the old way to write "A OR B"."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))

    def either():
        value = both()
        while tokens and tokens[0] == "OR":
            tokens.pop(0)
            value = both() | value
        return value

    def both():
        value = one()
        while tokens and tokens[0] == "AND":
            tokens.pop(0)
            value = one() & value
        return value

    def one():
        token = tokens.pop(0)
        if token == "(":
            value = either()
            tokens.pop(0)
            return value
        if tokens and tokens[0] == "WITH":
            tokens.pop(0)
            token = f"{token} WITH {tokens.pop(0)}"
        return token in allow

    return either()


def skipped(package, skip):
    """True when deny.toml tolerates this version beside another: "bitflags@1" means every 1.x."""
    return any(package["name"] == name and (package["version"] + ".").startswith(version + ".")
               for name, _, version in (s["crate"].partition("@") for s in skip))


def findings(everything, rules):
    allow, skip = set(rules["licenses"]["allow"]), rules["bans"]["skip"]
    versions = {}
    for p in everything:
        name = f"{p['name']} {p['version']}"
        if p["source"] not in (CRATES_IO, None):
            yield f"{name}: comes from {p['source']}; use a release on crates.io"
        if not p["license"] or not allowed(p["license"], allow):
            yield f"{name}: licence {p['license'] or 'not stated'} is not allowed; replace it or extend deny.toml"
        if not skipped(p, skip):
            versions.setdefault(p["name"], set()).add(p["version"])
    for name, found in versions.items():
        if len(found) > 1:
            yield f"{name}: built in versions {', '.join(sorted(found))}; align them or state the reason in deny.toml"


def main():
    with open(os.path.join(ROOT, "deny.toml"), "rb") as f:
        rules = tomllib.load(f)
    every = {p["id"]: p for target in rules["graph"]["targets"] for p in packages(target)}
    bad = sorted(findings(every.values(), rules))
    for line in bad:
        print("FAIL", line)
    print(f"{len(every)} packages: licences, sources and duplicates {'as deny.toml allows' if not bad else 'refused'}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
