"""Ports: sockets that belong to one server."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import struct
import sys
from collections.abc import Callable

BACKLOG = 2048  # connections that wait until they are accepted
HANDSHAKE_S = 0.05  # in which those that have begun are established: more than most round trips
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


async def close_listener(listener: socket.socket, accept: Callable[[], bool]) -> None:
    """Close a listening socket that has a reader, without resetting a connection.

    If it is cancelled, it closes the socket at once.

    A connection that is established between the last `accept` and `close` would be reset, perhaps
    with a request. So what would begin one is dropped first: its kernel tries again after a second
    and is refused, before it has sent anything, and a balancer takes another server.

    Args:
        listener: the socket; its reader accepts until it is closed.
        accept: accepts waiting connections; returns whether more may wait.
    """
    ignore_new_connections(listener)
    try:
        await asyncio.sleep(HANDSHAKE_S)
        while accept():
            pass
    finally:
        asyncio.get_running_loop().remove_reader(listener)
        listener.close()


def ignore_new_connections(listener: socket.socket) -> bool:
    """Let the kernel drop what would begin a connection.

    Returns:
        Whether it does: other systems than Linux, and some sandboxes, have no socket filters.
    """
    if sys.platform != "linux":
        return False
    program = ctypes.create_string_buffer(NO_SYN)
    fprog = struct.pack("HP", len(NO_SYN) // 8, ctypes.addressof(program))
    try:
        listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)
    except OSError:
        return False
    return True
