"""The frames of an HTTP/2 client (RFC 9113), followed without reading what is in them."""

from __future__ import annotations

from app.errors import InvalidInput, PayloadTooLarge

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9  # of a frame
MAX_FIRST_BYTES = 16 << 10  # of the first frame: RFC 9113, section 4.2
MAX_BLOCK_BYTES = 64 << 10  # of one head, as over HTTP; the core refuses calls far below that
DATA, HEADERS, SETTINGS, CONTINUATION = 0, 1, 4, 9
ACK = b"\x00\x00\x00\x04\x01\x00\x00\x00\x00"  # of SETTINGS
# In frames of a few bytes, such as PING:
CALL_COST = 8
BYTES_OF_COST = 4096
HEAD_BYTES_OF_COST = 128  # each byte may refer to a field of 4 KB


class Frames:
    """Follows the frames of one client, from its preface on.

    Attributes:
        opened: whether the preface and the first SETTINGS have been seen.
        ack_at: where the client's first ACK of SETTINGS begins in what the last step has passed; -1
            if it is not there.
        cost: of what the last step has passed; 0 if nothing.
        calls: heads of calls that the last step has passed.
        more: whether the last step has stopped for another reason than the end of the data.
    """

    __slots__ = (
        "_acknowledged",
        "_block",
        "_left",
        "ack_at",
        "calls",
        "cost",
        "more",
        "opened",
    )

    def __init__(self) -> None:
        self.opened = False
        self.ack_at = -1
        self.cost = self.calls = 0
        self.more = False
        self._acknowledged = False
        self._left = 0  # bytes of the current frame that are still to come
        self._block = 0  # bytes of the current head

    def open(self, data: bytes) -> int:
        """The end of the preface and of the first SETTINGS; 0 if more bytes are needed.

        Raises:
            InvalidInput: if it is not the beginning of HTTP/2.
        """
        begin = len(PREFACE)
        if data[:begin] != PREFACE[: len(data)]:
            raise InvalidInput("not HTTP/2: the connection does not begin with its preface")
        if len(data) < begin + HEAD_BYTES:
            return 0
        size, kind, flags = _head(data, begin)
        if size > MAX_FIRST_BYTES:
            raise PayloadTooLarge(f"a frame has {size} bytes, the limit is {MAX_FIRST_BYTES}")
        if kind != SETTINGS or flags & 1:
            raise InvalidInput("the first frame of a connection must be SETTINGS")
        end = begin + HEAD_BYTES + size
        if len(data) < end:
            return 0
        self.opened = True
        return end

    def step(self, data: bytes, at: int, budget: int, calls: int) -> int:
        """Pass frames from this position on; returns the position behind them.

        It stops when they cost more than the budget, before the head of one call too many, and
        before an incomplete head of a frame.

        Raises:
            PayloadTooLarge: if the head of a call is larger than allowed.
        """
        begin, cost, left, end = at, 0, calls, len(data)
        self.more = True
        self.ack_at = -1
        while cost < budget:
            if self._left:
                step = min(self._left, end - at)
                at += step
                self._left -= step
            if end - at < HEAD_BYTES:
                self.more = False
                break
            size, kind, flags = _head(data, at)
            if kind == HEADERS:
                if not left:
                    break
                left -= 1
                cost += CALL_COST + size // HEAD_BYTES_OF_COST
                self._block = size
            elif kind == CONTINUATION:
                self._block += HEAD_BYTES + size
                if self._block > MAX_BLOCK_BYTES:
                    raise PayloadTooLarge(f"a head has more than {MAX_BLOCK_BYTES} bytes")
                cost += size // HEAD_BYTES_OF_COST
            elif kind == SETTINGS and flags & 1 and not (size or self._acknowledged):
                self._acknowledged = True
                self.ack_at = at
            cost += 1
            self._left = size
            at += HEAD_BYTES
        passed = at - begin
        self.cost = cost + (passed + BYTES_OF_COST - 1) // BYTES_OF_COST
        self.calls = calls - left
        return at


def _head(data: bytes, at: int) -> tuple[int, int, int]:
    """Size, kind and flags of a frame."""
    size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
    return size, data[at + 3], data[at + 4]
