"""Ports: sockets that belong to one server."""

from __future__ import annotations

import socket

BACKLOG = 2048  # connections that wait until they are accepted


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
