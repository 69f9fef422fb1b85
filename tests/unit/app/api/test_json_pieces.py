"""Pieces of JSON are the same bytes as the whole, and none takes long."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.api import json_pieces as module
from app.api.json_pieces import MAX_COST, Flat, Lazy, LongText, json_pieces
from app.api.outcomes import dumped

NUMBERS = np.random.default_rng(1)
MOST_BYTES = 40 * MAX_COST  # of a piece: no number is that long


def floats(*shape: int, dtype: str = "f4") -> np.ndarray[Any, Any]:
    return NUMBERS.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize(
    "value",
    [
        *(floats(*shape) for shape in ((0,), (3,), (MAX_COST + 1,), (5 * MAX_COST,))),
        *(floats(*shape) for shape in ((7, MAX_COST - 1), (3, MAX_COST + 1), (2, 3, MAX_COST, 2))),
        *(floats(*shape) for shape in ((MAX_COST, 9), (MAX_COST + 2, 1), (40_000, 0))),
        *(floats(3 * MAX_COST, dtype=dtype) for dtype in ("f2", "f8", "i1", "u1", "i8", "?")),
        {"a": floats(2 * MAX_COST), 'quote"d': [1, None], "b": {"c": floats(3 * MAX_COST)}},
        [{"scores": floats(10), "label": "x", "score": np.float32(0.5)} for _ in range(5000)],
        [floats(2 * MAX_COST), 1, floats(3), "text", floats(2 * MAX_COST), floats(MAX_COST)],
        ("a" * 20 * MAX_COST, [], {}, "é\n" * MAX_COST),
    ],
)
def test_pieces_are_the_whole(value: object) -> None:
    pieces = list(json_pieces(value))
    assert b"".join(pieces) == dumped(value)
    assert max(map(len, pieces)) < MOST_BYTES


def test_long_texts_are_written_in_parts() -> None:
    texts = ["é\n" * 20 * MAX_COST, "", 'a"' * MAX_COST]
    whole = {"data": Lazy(LongText(memoryview(each.encode())) for each in texts)}
    pieces = list(json_pieces(whole))
    assert b"".join(pieces) == dumped({"data": texts})
    assert max(map(len, pieces)) < MOST_BYTES


@pytest.mark.parametrize(
    "shapes",
    [[(3,)], [(0,)], [(0,), (0,)], [()] * 3, [(2, 3)] * 2, [(MAX_COST + 5,)] * 3, [(7,)] * 9000],
)
def test_rows_become_one_flat_list(shapes: list[tuple[int, ...]]) -> None:
    rows = [floats(*shape) for shape in shapes]
    whole = {"shape": [1, 2], "data": np.concatenate([row.reshape(-1) for row in rows])}
    pieces = list(json_pieces({**whole, "data": Flat(rows)}))
    assert b"".join(pieces) == dumped(whole)
    assert max(map(len, pieces)) < MOST_BYTES


SPANS = [[{"label": "x", "score": 0.5, "start": at} for at in range(many)] for many in (0, 9, 9000)]


@pytest.mark.parametrize(
    "values",
    [
        [],
        [[]],
        [floats(4) for _ in range(5000)],
        [floats(2 * MAX_COST), {"a": floats(3)}, floats(MAX_COST)],
        [{"spans": spans} for spans in (*SPANS, *SPANS)],
    ],
    ids=["none", "empty", "small", "large", "spans"],
)
def test_a_lazy_list_is_made_as_it_is_written(values: list[object]) -> None:
    made: list[object] = []

    def make() -> Iterator[object]:
        for value in values:
            made.append(value)
            yield value

    pieces, before = [], 0
    for piece in json_pieces({"data": Lazy(make()), "end": 1}):
        assert len(made) - before <= 1
        before = len(made)
        pieces.append(piece)
    assert b"".join(pieces) == dumped({"data": values, "end": 1})
    assert max(map(len, pieces)) < MOST_BYTES


LEAVES = st.one_of(
    st.none(),
    st.integers(-5, 5),
    st.text(max_size=30),
    st.lists(st.integers(0, 3), max_size=3).map(lambda shape: floats(*shape, 2)),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner)
)


@settings(deadline=None)
@given(VALUES, st.integers(0, 20))
def test_any_document_in_pieces_of_any_size(value: object, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_COST", max(1, most))
        assert b"".join(json_pieces(value)) == dumped(value)
