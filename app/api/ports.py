"""Ports: sockets that belong to one server, and descriptors for their connections."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import socket
import struct
import sys
import time
from collections.abc import Callable

import structlog

from app.telemetry.line_rate import LineRate

LOG = structlog.get_logger(__name__)
BACKLOG = 2048  # connections that wait until they are accepted
PAUSE_S = 0.5  # until the next attempt to accept, if descriptors or memory are exhausted
LINE_S = 60.0  # between two lines in the log: callers can open any number of connections
RESERVE = 32  # descriptors for files: models, keys, logs; at low limits an eighth of the limit
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


def is_free_for_connection(known: int, *, last: bool = False) -> bool:
    """Whether a connection may take a descriptor.

    The kernel assigns the lowest free number, so a high one shows that few are left.

    Args:
        known: any open descriptor.
        last: whether connections may take those that are reserved for files.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        lowest_free = os.dup(known)
    except OSError:  # none is left
        return False
    os.close(lowest_free)
    reserve = 0 if last else min(RESERVE, limit // 8)
    return limit == resource.RLIM_INFINITY or lowest_free < limit - reserve


class Shortage:
    """Logs what a lack of descriptors or memory does to connections, at most once per LINE_S.

    Args:
        event: what it does.
        labels: more fields of the line.
    """

    def __init__(self, event: str = "cannot_accept", **labels: str) -> None:
        self._labels = labels
        self._event = event
        self._rate = LineRate(1, 1 / LINE_S)

    def tell(self, reason: str | None = None) -> None:
        """Count it, and log it if a line is due.

        Args:
            reason: of the system; None: the descriptors that are not reserved are used up.
        """
        if self._rate.allows(time.monotonic()):
            times = 1 + self._rate.take_left_out()
            why = reason or "too many open files"
            LOG.error(self._event, reason=why, times=times, **self._labels)
