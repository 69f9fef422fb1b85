#!/usr/bin/env python3
"""Run a program that cannot see the machine's network interfaces.

The environment variable `RUNS` names it; arguments are passed on. Chromium breaks off the
connections that it is making, with `ERR_NETWORK_CHANGED`, as soon as any interface gets or loses an
address, which each network of a container engine does. A browser without netlink sockets never
learns of it. The filter is inherited, and cannot be taken off again.
"""

import ctypes
import os
import platform
import socket
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38  # prctl(2); Python has no names for them
SECCOMP_MODE_FILTER = 2
SOCKET = {"x86_64": 41, "aarch64": 198}  # the number of the system call
# Classic BPF over `struct seccomp_data`, in `struct sock_filter`s: code, jump if true, jump if
# false, operand.
NO_NETLINK = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 0, 3, SOCKET.get(platform.machine(), 0xFFFFFFFF)),  # socket()?
        (0x20, 0, 0, 16),  # load its first argument, the family
        (0x15, 0, 1, socket.AF_NETLINK),  # netlink?
        (0x06, 0, 0, 0x00050000 | 97),  # fail with EAFNOSUPPORT
        (0x06, 0, 0, 0x7FFF0000),  # allow it
    )
)


def main() -> None:
    program = ctypes.create_string_buffer(NO_NETLINK, len(NO_NETLINK))
    # `struct sock_fprog`: how many instructions, and where they are.
    filters = struct.pack("@HP", len(NO_NETLINK) // 8, ctypes.addressof(program))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, None, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, filters, 0, 0),
    ):
        if prctl(*arguments):
            sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    os.execv(os.environ["RUNS"], [os.environ["RUNS"], *sys.argv[1:]])


if __name__ == "__main__":
    main()
