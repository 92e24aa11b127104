#!/usr/bin/env python3
"""Says whether this machine lets a process set up an io_uring. Exit 1 when it does not: nothing here can run then."""
import ctypes
import os
import sys

IO_URING_SETUP = 425            # the same number on every architecture
REASONS = {
    1: "not permitted: sysctl kernel.io_uring_disabled is set, or a seccomp profile (a container's default) blocks it",
    38: "this kernel has none: Linux 6.1 or newer is needed",
    12: "memory: raise the memlock limit (ulimit -l)",
}


def main():
    libc = ctypes.CDLL(None, use_errno=True)
    params = ctypes.create_string_buffer(120)
    fd = libc.syscall(IO_URING_SETUP, 8, params)
    kernel = os.uname().release
    if fd < 0:
        code = ctypes.get_errno()
        print(f"io_uring does NOT work on this machine (kernel {kernel}): {REASONS.get(code, os.strerror(code))}")
        return 1
    os.close(fd)
    print(f"io_uring works (kernel {kernel})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
