"""The frames of an HTTP/2 client."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.api.oip.grpc.frames import ACK, HEAD_BYTES, MAX_BLOCK_BYTES, PREFACE, Frames
from app.errors import InvalidInput, PayloadTooLarge

ALL = 1_000_000


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 1) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


SETTINGS = frame(4, bytes(6), stream=0)
HEADERS, DATA, PING = frame(1, b"head", 4), frame(0, b"message"), frame(6, bytes(8), stream=0)


def opened() -> Frames:
    frames = Frames()
    assert frames.open(PREFACE + SETTINGS) == len(PREFACE + SETTINGS)
    return frames


def passed(frames: Frames, pieces: list[bytes], budget: int = ALL, calls: int = ALL) -> bytes:
    """What is passed on of data that arrives in these pieces."""
    got, rest = b"", b""
    for piece in pieces:
        data, at = rest + piece, 0
        while True:
            to = frames.step(data, at, budget, calls)
            ack_at = frames.ack_at if frames.ack_at >= 0 else to
            got += data[at:ack_at] + data[ack_at + HEAD_BYTES : to]
            at = to
            if not frames.more or at == len(data):
                break
        rest = data[at:]
    return got


class TestOpen:
    def test_needs_the_preface_and_the_first_settings(self) -> None:
        frames, start = Frames(), PREFACE + SETTINGS
        for size in range(len(start)):
            assert frames.open(start[:size]) == 0
            assert not frames.opened
        assert frames.open(start + HEADERS) == len(start)
        assert frames.opened

    @pytest.mark.parametrize(
        "begin",
        [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", PREFACE + HEADERS, PREFACE + ACK],
        ids=["http1", "tls", "no_settings", "ack"],
    )
    def test_refuses_other_protocols(self, begin: bytes) -> None:
        with pytest.raises(InvalidInput):
            Frames().open(begin)

    def test_limits_the_first_frame(self) -> None:
        with pytest.raises(PayloadTooLarge):
            Frames().open(PREFACE + frame(4, bytes(17_000), stream=0))


class TestStep:
    @given(st.lists(st.integers(0, 200)), st.integers(1, 5))
    def test_passes_everything_except_the_first_ack(self, cuts: list[int], budget: int) -> None:
        sent = HEADERS + ACK + DATA + frame(0) + PING + ACK + frame(77, b"x" * 60) + HEADERS
        places = [0, *sorted(min(cut, len(sent)) for cut in cuts), len(sent)]
        pieces = [sent[a:b] for a, b in itertools.pairwise(places)]
        assert passed(opened(), pieces, budget) == sent.replace(ACK, b"", 1)

    def test_passes_a_malformed_ack_whole(self) -> None:
        """If only its head were dropped, the core would read its payload as frames."""
        sent = frame(4, HEADERS, 1, 0) + PING
        assert passed(opened(), [sent]) == sent

    def test_stops_when_the_budget_is_used_up(self) -> None:
        frames = opened()
        assert frames.step(PING * 10, 0, 3, ALL) == 2 * len(PING) + HEAD_BYTES
        assert frames.more
        assert frames.cost >= 3
        large = frame(0, bytes(100_000))
        frames.step(large, 0, ALL, ALL)
        assert frames.cost > 20

    def test_heads_cost_more(self) -> None:
        """Each of their bytes may refer to a field of 4 KB."""
        frames = opened()
        references = frame(1, bytes(4000), 4)
        frames.step(references * 10, 0, 40, ALL)
        assert frames.calls <= 2
        frames.step(frame(0, bytes(4000)) * 10, 0, 40, ALL)
        assert not frames.more

    def test_stops_before_one_call_too_many(self) -> None:
        frames = opened()
        assert frames.step((HEADERS + DATA) * 3, 0, ALL, 2) == 2 * len(HEADERS + DATA)
        assert (frames.calls, frames.more) == (2, True)
        assert frames.step(HEADERS, 0, ALL, 0) == 0
        assert frames.cost == 0

    @pytest.mark.parametrize("size", [0, 1000])
    def test_limits_the_head_of_a_call(self, size: int) -> None:
        """Also if it consists of empty frames."""
        frames = opened()
        more = frame(9, bytes(size))
        frames.step(frame(1), 0, ALL, ALL)
        with pytest.raises(PayloadTooLarge):
            frames.step(more * (MAX_BLOCK_BYTES // len(more) + 1), 0, ALL, ALL)
