"""The JSON of a large answer in pieces that are quick to write, in total the same bytes."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np

from app.api.outcomes import dumped
from app.codecs.elements import text_of
from app.types import Array

MAX_COST = 1 << 14  # of a piece, in numbers: takes about half a millisecond
CHARACTERS = 8  # of a string that cost as much as a number


class Flat(NamedTuple):
    """The numbers of all rows as one flat list."""

    rows: Sequence[Array]


class Lazy(NamedTuple):
    """A list whose elements are made one by one as they are written."""

    values: Iterator[object]


class LongText(NamedTuple):
    """A string, as its octets in UTF-8."""

    octets: memoryview | bytes  # mypyc fails on memoryview alone


def json_pieces(value: object) -> Generator[bytes, None, None]:
    """What `dumped` returns for a document of dicts, lists and C-contiguous arrays, in pieces.

    Beyond that, a document may have a `Flat`, a `Lazy` or a `LongText`. Some pieces are empty,
    after other work.
    """
    if isinstance(value, Flat):
        yield from _flat(value)
    elif isinstance(value, Lazy):
        yield from _list(value.values, is_lazy=True)
    elif isinstance(value, LongText):
        yield b'"'
        for part in text_of(memoryview(value.octets)):
            yield dumped(part)[1:-1]
        yield b'"'
    elif _cost(value, MAX_COST) <= MAX_COST:
        yield dumped(value)
    elif isinstance(value, np.ndarray):
        yield from _array(value)
    elif isinstance(value, dict):
        before = b"{"
        for key, each in value.items():
            yield b"%b%b:" % (before, dumped(key))
            yield from json_pieces(each)
            before = b","
        yield b"}"
    elif isinstance(value, list | tuple):
        yield from _list(value)
    else:
        yield dumped(value)


def _list(values: Iterable[object], *, is_lazy: bool = False) -> Generator[bytes, None, None]:
    """A list, its small elements in groups."""
    before = b"["
    group: list[object] = []
    cost = 0
    for each in values:
        if is_lazy:  # it took an unknown time to make it
            yield b""
        more = _cost(each, MAX_COST)
        if group and cost + more > MAX_COST:
            yield before + dumped(group)[1:-1]
            before, group, cost = b",", [], 0
        if more > MAX_COST:
            yield before
            yield from json_pieces(each)
            before = b","
        else:
            group.append(each)
            cost += more
    if group:
        yield before + dumped(group)[1:-1]
        before = b","
    yield b"[]" if before == b"[" else b"]"


def _array(values: Array) -> Generator[bytes, None, None]:
    """An array of at least one axis, its rows in groups."""
    row = math.prod(values.shape[1:])
    before = b"["
    if row > MAX_COST:
        for each in values:
            yield before
            yield from _array(each)
            before = b","
    else:
        count = max(1, MAX_COST // max(1, row))
        for at in range(0, len(values), count):
            yield before + dumped(values[at : at + count])[1:-1]
            before = b","
    yield b"]"


def _flat(value: Flat) -> Generator[bytes, None, None]:
    before = b"["
    group: list[Array] = []
    cost = 0
    for row in value.rows:
        numbers = row.reshape(-1)
        for at in range(0, len(numbers), MAX_COST):
            part = numbers[at : at + MAX_COST]
            if group and cost + len(part) > MAX_COST:
                yield before + _dumped_flat(group)
                before, group, cost = b",", [], 0
            group.append(part)
            cost += len(part)
    yield before + (_dumped_flat(group) if group else b"") + b"]"


def _dumped_flat(parts: Sequence[Array]) -> bytes:
    return dumped(parts[0] if len(parts) == 1 else np.concatenate(parts))[1:-1]


def _cost(value: object, most: int) -> int:
    """About what a value costs to write, in numbers; if that is above `most`, any such number."""
    if isinstance(value, np.ndarray):
        return value.size
    if isinstance(value, str):
        return 1 + len(value) // CHARACTERS
    if isinstance(value, Flat | Lazy | LongText):
        return most + 1  # orjson does not know them
    key_cost = 0
    inner: Iterable[object] = ()
    if isinstance(value, dict):
        key_cost, inner = 2, value.values()
    elif isinstance(value, list | tuple):
        inner = cast(Sequence[object], value)
    cost = 1
    for each in inner:
        cost += key_cost + _cost(each, most - cost)
        if cost > most:
            break
    return cost
