#!/usr/bin/env python3
"""Counts the instructions that an event costs in the pure core, and compares them with the record.

usage: scripts/instructions.py            count and compare; exit 1 when a row costs more than the record allows
       scripts/instructions.py --record   count and write bench/instructions.json
       scripts/instructions.py --profile FILTER   where the instructions of the rows with FILTER in their name are

benches/instructions.rs is the workload, valgrind's callgrind counts. Only instructions of the program itself count: the C
library chooses its memcpy by the processor, so what it does (the copy of a payload, memory for a command) is shown
beside them and judged by nobody. The rest repeats to the digit, on any x86-64 machine, with the same compiler.

Other compilers make other code, so with one that the record does not have the bound is wider, and the table says so.
"""

import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "bench" / "instructions.json"
# A row may cost so much more than its record; as much less asks for a new record.
BOUND = 0.03
# With another compiler than that of the record.
WIDE_BOUND = 0.15

# Name of a case, arguments of the workload, what is counted in it.
CASES = [
    ("command, 1 subscriber", ["command", "1", "1", "1024"], "publish send fill"),
    ("command, 16 subscribers", ["command", "16", "1", "1024"], "publish send fill"),
    ("command, 100 subscribers", ["command", "100", "1", "256"], "publish send fill"),
    ("command, 1000 subscribers", ["command", "1000", "1", "64"], "publish send fill"),
    ("command, 10000 subscribers", ["command", "10000", "1", "16"], "publish send fill"),
    ("command, 1000 subscribers, 16 events a turn", ["command", "1000", "16", "64"], "publish send fill"),
    ("client, 1 subscriber", ["client", "1", "1", "1024"], "publish"),
    ("client, 16 subscribers", ["client", "16", "1", "1024"], "publish"),
    ("client, 1000 subscribers", ["client", "1000", "1", "64"], "publish"),
]
# What is counted, as functions of the workload. "send" is what a send costs besides the copy.
FUNCTIONS = {"publish": ["publish"], "send": ["ahead", "next", "sent", "settle"], "fill": ["fill"]}
ROWS = [(f"{case}: {what}", args, what) for case, args, parts in CASES for what in parts.split()]


def build():
    """The workload's binary."""
    command = ["cargo", "bench", "--locked", "--quiet", "--no-run", "--bench", "instructions",
               "--message-format=json"]
    built = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if built.returncode != 0:
        sys.exit(built.returncode)
    messages = [json.loads(line) for line in built.stdout.splitlines() if line.startswith("{")]
    return next(m["executable"] for m in messages if m.get("target", {}).get("name") == "instructions")


def callgrind(binary, args, what, out):
    """Runs the workload under callgrind; the number of deliveries that it printed."""
    toggles = [f"--toggle-collect=*counted_{name}*" for name in FUNCTIONS[what]]
    command = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={out}", "--compress-strings=no",
               "--compress-pos=no", *toggles, binary, *args]
    run = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if run.returncode != 0:
        sys.exit(f"instructions: {' '.join(command)} ended with {run.returncode}:\n{run.stderr}")
    return int(run.stdout)


def costs(out, binary):
    """Instructions in a callgrind file: those of the program itself, those of its libraries."""
    own = others = 0
    mine = skip = False
    for line in open(out):
        if line.startswith("ob="):
            mine = line[3:].strip() == binary
        elif line.startswith("calls="):
            skip = True  # the next line has what the called function cost, which is counted there
        elif re.match(r"[0-9+*-]", line):
            if not skip:
                cost = int(line.split()[1])
                own, others = (own + cost, others) if mine else (own, others + cost)
            skip = False
    return own, others


def count(binary, args, what):
    """One row: deliveries, own instructions, those of libraries."""
    with tempfile.NamedTemporaryFile(prefix="instructions-") as out:
        deliveries = callgrind(binary, args, what, out.name)
        own, others = costs(out.name, binary)
        if own == 0:
            sys.exit(f"instructions: nothing was counted for {what}; is a function of {ROOT}/benches renamed?")
        return deliveries, own, others


def compiler():
    """The toolchain, as far as it decides what code is made."""
    lines = subprocess.run(["rustc", "-vV"], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    facts = dict(line.split(": ", 1) for line in lines if ": " in line)
    flags = os.environ.get("RUSTFLAGS", "") or "default"
    return f"rustc {facts['release']} ({facts['commit-hash'][:9]}), LLVM {facts['LLVM version']}, {facts['host']}, " \
           f"flags: {flags}"


def profile(binary, pattern):
    for name, args, what in ROWS:
        if pattern in name:
            with tempfile.NamedTemporaryFile(prefix="instructions-") as out:
                callgrind(binary, args, what, out.name)
                print(f"== {name}", flush=True)
                subprocess.run(["callgrind_annotate", "--auto=yes", "--context=0", out.name], stderr=subprocess.DEVNULL)


def compare(counted, record, bound):
    """Prints the table; the names of rows above the bound, and of those below it."""
    worse, better = [], []
    print(f"{'per delivery':55} {'now':>9} {'record':>9} {'change':>8}   libraries")
    for name, (deliveries, own, others) in counted.items():
        then, change = "-", "new"
        if name in record:
            recorded = record[name]["instructions"] / record[name]["deliveries"]
            ratio = own / deliveries / recorded - 1
            then, change = f"{recorded:.2f}", f"{ratio:+.2%}"
            (worse if ratio > bound else better if ratio < -bound else []).append(name)
        else:
            worse.append(name)
        print(f"{name:55} {own / deliveries:9.2f} {then:>9} {change:>8}   {others / deliveries:9.2f}")
    worse += [name for name in record if name not in counted]
    return worse, better


def main():
    sys.stdout.reconfigure(line_buffering=True)
    if os.uname().machine != "x86_64":
        print(f"!!! INSTRUCTIONS NOT COUNTED: the record is of x86_64, this machine is {os.uname().machine}")
        return 0
    binary = build()
    if sys.argv[1:2] == ["--profile"]:
        return profile(binary, sys.argv[2])
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        # The longest first, so that no processor is left with one of them in the end.
        rows = sorted(ROWS, key=lambda row: -int(row[1][1]))
        done = dict(zip([row[0] for row in rows], pool.map(lambda row: count(binary, row[1], row[2]), rows)))
    counted = {row[0]: done[row[0]] for row in ROWS}
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {"compiler": "none", "rows": {}}
    now = compiler()
    same = record["compiler"] == now
    bound = BOUND if same else WIDE_BOUND
    print(f"record: {record['compiler']}")
    if not same:
        print(f"now:    {now}\n!!! ANOTHER COMPILER: the bound is {WIDE_BOUND:.0%} instead of {BOUND:.0%}")
    worse, better = compare(counted, record["rows"], bound)
    if sys.argv[1:2] == ["--record"]:
        rows = {name: {"deliveries": d, "instructions": own} for name, (d, own, _) in counted.items()}
        RECORD.parent.mkdir(exist_ok=True)
        RECORD.write_text(json.dumps({"compiler": now, "rows": rows}, indent=2) + "\n")
        print(f"recorded in {RECORD.relative_to(ROOT)}")
        return 0
    if same:
        for name in better:
            print(f"BETTER {name}: record it with scripts/instructions.py --record")
    for name in worse:
        print(f"WORSE {name}: more than {bound:.0%} above the record, or in only one of them;"
              " if it has to be so, scripts/instructions.py --record and say why")
    print(f"{len(counted) - len(worse)} passed, {len(worse)} failed")
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
