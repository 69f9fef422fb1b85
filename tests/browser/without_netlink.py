#!/usr/bin/env python3
"""Run a browser that cannot watch the machine's network interfaces.

The environment variable `BROWSER_PROGRAM` names its program; arguments are passed on. Chromium
cancels connections that are being established, with `ERR_NETWORK_CHANGED`, whenever an interface
gets or loses an address, for example when a container engine creates a network. Without netlink
sockets it does not notice. Where filters are forbidden, the browser runs without one.
"""

import ctypes
import os
import platform
import socket
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38  # prctl(2); Python has no names for them
SECCOMP_MODE_FILTER = 2
SOCKET_CALLS = {"x86_64": 41, "aarch64": 198}  # number of the system call socket()


def netlink_filter(socket_call: int) -> bytes:
    """Classic BPF over `struct seccomp_data` of a little-endian machine, in `sock_filter`s.

    It is no security boundary, so it does not check which architecture a call is made for.
    """
    instructions = (  # code, jump if true, jump if false, operand
        (0x20, 0, 0, 0),  # load the number of the call
        (0x15, 0, 3, socket_call),
        (0x20, 0, 0, 16),  # load its first argument, the address family
        (0x15, 0, 1, socket.AF_NETLINK),
        (0x06, 0, 0, 0x00050000 | 97),  # fail with EAFNOSUPPORT
        (0x06, 0, 0, 0x7FFF0000),  # allow
    )
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in instructions)


def forbid_netlink(socket_call: int) -> None:
    """Forbid this process and its children to open netlink sockets.

    Raises:
        OSError: if the system allows no filter.
    """
    code = netlink_filter(socket_call)
    buffer = ctypes.create_string_buffer(code, len(code))
    # `struct sock_fprog`: how many instructions, and where they are.
    program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, None, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0),
    ):
        if prctl(*arguments):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def main() -> None:
    socket_call = SOCKET_CALLS.get(platform.machine())
    if socket_call is not None:
        try:
            forbid_netlink(socket_call)
        except OSError as error:
            sys.stderr.write(f"the browser watches network interfaces: {error}\n")
    os.execv(os.environ["BROWSER_PROGRAM"], [os.environ["BROWSER_PROGRAM"], *sys.argv[1:]])


if __name__ == "__main__":
    main()
