"""The framing, with what a broken or hostile other side sends."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchlane.handlers.frames import (
    ANSWER,
    CALL,
    FROM_HANDLER,
    HEAD,
    MAX_META_BYTES,
    MAX_NUMBER,
    PADDING,
    REQUEST,
    Decoder,
    Frame,
    MalformedFrame,
    head,
    next_number,
)

LIMIT = 1000
FRAMES = st.lists(
    st.builds(
        Frame,
        st.sampled_from(sorted(FROM_HANDLER)),
        st.integers(0, MAX_NUMBER),
        st.dictionaries(st.text(), st.integers() | st.text(), max_size=3),
        st.binary(max_size=LIMIT),
    ),
    max_size=5,
)


def decoder() -> Decoder:
    return Decoder(FROM_HANDLER, LIMIT)


def written(frames: Sequence[Frame]) -> bytes:
    data = b""
    for each in frames:
        meta = json.dumps(each.meta).encode() if each.meta else b""
        data += head(each.kind, each.number, meta, len(each.body)) + each.body
    return data


@given(FRAMES, st.lists(st.integers(1, 50), min_size=1))
def test_frames_come_out_as_they_went_in(frames: list[Frame], sizes: list[int]) -> None:
    """However the bytes are cut."""
    data, reader, turn = written(frames), decoder(), 0
    read: list[Frame] = []
    while data:
        size = sizes[turn % len(sizes)]
        read += reader.feed(data[:size])
        data, turn = data[size:], turn + 1
    assert read == frames


@given(FRAMES, st.binary(min_size=1, max_size=200), st.integers(0, 10_000))
def test_damaged_bytes_are_frames_or_malformed(
    frames: list[Frame], damage: bytes, place: int
) -> None:
    data = written(frames)
    at = place % (len(data) + 1)
    reader = decoder()
    try:
        for frame in reader.feed(data[:at] + damage + data[at + len(damage) :]):
            assert frame.kind in FROM_HANDLER
            assert len(frame.body) <= LIMIT
    except MalformedFrame:
        pass


@pytest.mark.parametrize(
    ("start", "reason"),
    [
        (head(REQUEST, 1), "unknown kind 1"),
        (head(255, 1), "unknown kind 255"),
        (HEAD.pack(0, 0, 1, ANSWER, b"\0\0\1"), "unknown kind"),
        (HEAD.pack(0, LIMIT + 1, 1, ANSWER, PADDING), "1001 of body"),
        (HEAD.pack(MAX_META_BYTES + 1, 0, 1, ANSWER, PADDING), "bytes of meta"),
        (head(CALL, 1, b"{"), "not JSON"),
        (head(CALL, 1, b"[" * 100_000), "not JSON"),
        (head(CALL, 1, b"\xff"), "not JSON"),
        (head(CALL, 1, b"[1]"), "not a JSON object"),
    ],
)
def test_malformed_frame_is_refused_before_its_body_comes(start: bytes, reason: str) -> None:
    with pytest.raises(MalformedFrame, match=reason):
        list(decoder().feed(start))


def test_numbers_begin_again_without_zero() -> None:
    assert next_number(MAX_NUMBER) == 1
    assert next_number(1) == 2
