#!/usr/bin/env python3
"""Runs a command under a seccomp filter: that of a container's profile, or that which a systemd unit describes.

Usage: scripts/seccomp.py PROFILE.json|UNIT.service [--without NAME]... -- COMMAND...

A profile is in the format of OCI runtimes (Docker, Podman). Of a unit these count: SystemCallFilter, SystemCallErrorNumber,
RestrictAddressFamilies, MemoryDenyWriteExecute, RestrictNamespaces; the groups are those of the systemd here. --without
takes system calls away. The filter is made by libseccomp, as container runtimes and systemd do.
"""

import ctypes
import ctypes.util
import errno
import json
import os
import socket
import subprocess
import sys

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
COMPARE = {"SCMP_CMP_NE": 1, "SCMP_CMP_LT": 2, "SCMP_CMP_LE": 3, "SCMP_CMP_EQ": 4, "SCMP_CMP_GE": 5, "SCMP_CMP_GT": 6,
           "SCMP_CMP_MASKED_EQ": 7}
PR_SET_NO_NEW_PRIVS = 38
WRITE_AND_EXECUTE, EXECUTE = 6, 4
NAMESPACES = [0x00020000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000]


class Comparison(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


class Filter:
    """One filter; several can be loaded, the strictest verdict counts."""

    def __init__(self, default):
        self.library = ctypes.CDLL(ctypes.util.find_library("seccomp") or "libseccomp.so.2")
        self.library.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.library.seccomp_init(ctypes.c_uint32(default)))
        self.default = default

    def add(self, action, name, comparisons=()):
        """An unknown name is let pass: kernels and machines differ in what they have."""
        number = self.library.seccomp_syscall_resolve_name(name.encode())
        if number == -1 or action == self.default:
            return
        array = (Comparison * len(comparisons))(*comparisons)
        result = self.library.seccomp_rule_add_array(self.context, ctypes.c_uint32(action), number, len(array), array)
        if result < 0:
            sys.exit(f"seccomp.py: cannot add {name}: {os.strerror(-result)}")

    def load(self):
        result = self.library.seccomp_load(self.context)
        if result < 0:
            sys.exit(f"seccomp.py: cannot load the filter: {os.strerror(-result)}")


def of_profile(path, without):
    """The filter of a container's profile."""
    with open(path, encoding="utf-8") as file:
        profile = json.load(file)
    actions = {"SCMP_ACT_ALLOW": lambda rule: ALLOW, "SCMP_ACT_ERRNO": lambda rule: ERRNO | rule.get("errnoRet", 1)}
    default = actions[profile["defaultAction"]]({"errnoRet": profile.get("defaultErrnoRet", 1)})
    made = Filter(default)
    for rule in profile["syscalls"]:
        wanted = [Comparison(a["index"], COMPARE[a["op"]], a["value"], a.get("valueTwo", 0))
                  for a in rule.get("args", [])]
        for name in rule["names"]:
            if name not in without:
                made.add(actions[rule["action"]](rule), name, wanted)
    return [made]


def group(name):
    """The system calls of a group of systemd."""
    if not name.startswith("@"):
        return {name}
    listing = subprocess.run(["systemd-analyze", "syscall-filter", name], check=True, capture_output=True, text=True)
    members = [line.strip() for line in listing.stdout.splitlines()[1:]]
    return set().union(*(group(member) for member in members if member and not member.startswith("#")))


def of_unit(path, without):
    """The filters of a unit: first what is refused in part, then the list of what is allowed."""
    options = {}
    with open(path, encoding="utf-8") as file:
        for line in file:
            if "=" in line and not line.startswith("#"):
                name, value = line.rstrip("\n").split("=", 1)
                options.setdefault(name, []).append(value)
    refused = ERRNO | getattr(errno, options["SystemCallErrorNumber"][-1])
    # systemd allows these wherever it filters at all.
    allowed = set() if options["SystemCallFilter"][0].startswith("~") else group("@default") | {"execve"}
    for value in options["SystemCallFilter"]:
        names = set().union(*map(group, value.removeprefix("~").split()))
        allowed = allowed - names if value.startswith("~") else allowed | names
    calls = Filter(refused)
    for name in allowed - set(without) - {"socket"}:
        calls.add(ALLOW, name)
    for family in options["RestrictAddressFamilies"][-1].split():
        calls.add(ALLOW, "socket", [Comparison(0, COMPARE["SCMP_CMP_EQ"], getattr(socket, family), 0)])
    partly = Filter(ALLOW)
    if options["MemoryDenyWriteExecute"][-1] == "yes":
        equal = COMPARE["SCMP_CMP_MASKED_EQ"]
        partly.add(ERRNO | 1, "mmap", [Comparison(2, equal, WRITE_AND_EXECUTE, WRITE_AND_EXECUTE)])
        partly.add(ERRNO | 1, "mprotect", [Comparison(2, equal, EXECUTE, EXECUTE)])
        partly.add(ERRNO | 1, "pkey_mprotect", [Comparison(2, equal, EXECUTE, EXECUTE)])
    if options["RestrictNamespaces"][-1] == "yes":
        for name in ("setns", "unshare"):
            partly.add(ERRNO | 1, name)
        for flag in NAMESPACES:
            partly.add(ERRNO | 1, "clone", [Comparison(0, COMPARE["SCMP_CMP_MASKED_EQ"], flag, flag)])
    return [partly, calls]


def main():
    """Reads the arguments, loads, and becomes the command."""
    if "--" not in sys.argv or sys.argv.index("--") < 2:
        sys.exit(__doc__)
    cut = sys.argv.index("--")
    path, options, command = sys.argv[1], sys.argv[2:cut], sys.argv[cut + 1:]
    without = options[1::2]
    filters = of_profile(path, without) if path.endswith(".json") else of_unit(path, without)
    ctypes.CDLL(None).prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for made in filters:
        made.load()
    os.execvp(command[0], command)


main()
