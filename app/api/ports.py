"""Ports: sockets that belong to one server."""

from __future__ import annotations

import contextlib
import ctypes
import socket
import struct
import sys

BACKLOG = 2048  # connections that wait until they are accepted
# socket(7); Python has no name for it.
SO_ATTACH_FILTER = 26
# Classic BPF, in `struct sock_filter`s: code, jump if true, jump if false, operand.
NO_SYN = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in (
        (0x30, 0, 0, 13),  # load the byte of the TCP header that has the flags
        (0x45, 0, 1, 0x02),  # SYN?
        (0x06, 0, 0, 0),  # return 0: drop it
        (0x06, 0, 0, 0xFFFFFFFF),  # return all of it
    )
)


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket bound to an address that has no listener yet.

    Raises:
        OSError: if it has one.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    family, kind, protocol, _, address = found[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound


def listening(host: str, port: int) -> socket.socket:
    """A socket that listens: from now on no other server can use the port.

    Two sockets that are only bound may have the same port, and learn of it when the second listens.

    Raises:
        OSError: if another socket listens there.
    """
    bound = bound_socket(host, port)
    try:
        bound.listen(BACKLOG)
    except OSError:
        bound.close()
        raise
    return bound


def ignore_new_connections(listener: socket.socket) -> None:
    """Let the kernel drop what would begin a connection, before a listening socket is closed.

    A connection that is established between the last `accept` and `close` is reset, perhaps with a
    request. One whose first packet is dropped has sent none: its kernel tries again after a second
    and is refused, and a balancer takes another server. Established ones can still be accepted.

    On Linux; elsewhere, and in sandboxes without socket filters, it does nothing.
    """
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(NO_SYN)
        fprog = struct.pack("HP", len(NO_SYN) // 8, ctypes.addressof(program))
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)
