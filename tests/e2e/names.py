"""A DNS server that gives the same addresses for every name, as those of container engines do."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import threading
from collections.abc import Iterator, Sequence

A, IN, ANSWERS = 1, 1, 0x8180  # QR, RD, RA
HEADER_BYTES, TAIL_BYTES = 12, 4  # of a question: type and class follow the name
TTL_S = 1
SERVFAIL = 2


class Names:
    """Every question for an address gets all of them.

    Attributes:
        addresses: what the name stands for; may change at any time.
        failure: a code that answers have instead of addresses, such as SERVFAIL; may change, too.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = tuple(addresses)
        self.failure = 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.port = int(self.socket.getsockname()[1])

    def serve(self) -> None:
        """Answer until the socket is closed."""
        with contextlib.suppress(OSError):
            while asked := self.socket.recvfrom(4096):
                question, caller = asked
                if not question:  # the end
                    return
                self.socket.sendto(self._answer(question), caller)

    def _answer(self, asked: bytes) -> bytes:
        end = asked.index(b"\0", HEADER_BYTES) + 1 + TAIL_BYTES
        kind, _ = struct.unpack("!HH", asked[end - TAIL_BYTES : end])
        found = self.addresses if kind == A and not self.failure else ()
        (number,) = struct.unpack("!H", asked[:2])
        head = struct.pack("!HHHHHH", number, ANSWERS | self.failure, 1, len(found), 0, 0)
        records = b"".join(
            struct.pack("!HHHIH", 0xC000 | HEADER_BYTES, A, IN, TTL_S, 4)
            + ipaddress.IPv4Address(each).packed
            for each in found
        )
        return head + asked[HEADER_BYTES:end] + records


@contextlib.contextmanager
def naming(addresses: Sequence[str]) -> Iterator[Names]:
    """A DNS server in a thread."""
    names = Names(addresses)
    thread = threading.Thread(target=names.serve)
    thread.start()
    try:
        yield names
    finally:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", names.port))
        thread.join()
        names.socket.close()
