"""Items fit any manifest, and their variants are all different and hardly so."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import orjson

from loadtests.traffic.payloads import (
    Template,
    can_be_aligned,
    discrete_item,
    draw_item,
    json_template,
    npy_template,
    places_of,
    raw_template,
)
from models.bounds import at_sizes, mismatch, out_of_range, shared_axes
from models.tensors import Arrays, Dimension, TensorSpec


def specs(*inputs: tuple[str, str, list[int]]) -> list[TensorSpec]:
    return [TensorSpec(name=n, dtype=d, shape=tuple(s)) for n, d, s in inputs]


def draw(*inputs: tuple[str, str, list[int]], seed: int = 1) -> Arrays:
    return draw_item(specs(*inputs), np.random.default_rng(seed))


MATRIX = ("x", "float32", [-1, 20, 3])


def test_template_enumerates_all_its_variants() -> None:
    template = Template((b"a", b"-", b"z"), ((b"0", b"1"), (b"x", b"y", b"w")))
    assert template.variants == 6
    assert template.fill(0) == b"a0-xz"
    assert len({template.fill(number) for number in range(6)}) == 6
    assert template.fill(6) == template.fill(0)


def test_items_respect_names_bounds_and_ranges() -> None:
    seq, n = Dimension(name="seq", least=2, most=5), Dimension(name="n", least=60, most=70)
    inputs = [
        TensorSpec(
            name="i", dtype="int64", shape=(-1, -1), dimensions=(seq,), minimum=3, maximum=9
        ),
        TensorSpec(name="m", dtype="bool", shape=(-1, 4, -1), dimensions=(seq,)),
        TensorSpec(name="l", dtype="int8", shape=(-1, -1, -1), dimensions=(n, n), maximum=-5),
        TensorSpec(name="at", dtype="int64", shape=(-1, 3), minimum=0, below="seq"),
    ]
    assert not can_be_aligned(inputs)
    items = [draw_item(inputs, np.random.default_rng(seed)) for seed in range(50)]
    for item in [*items, *(discrete_item(inputs, 2**number) for number in range(200))]:
        shapes = {name: array.shape for name, array in item.items()}
        assert mismatch(shared_axes(inputs), shapes) is None
        for each in at_sizes(inputs, shapes):
            assert each.takes(shapes[each.name])
            assert out_of_range(each, item[each.name]) is None
    assert {item["i"].shape for item in items} == {(size,) for size in (2, 3, 4, 5)}
    assert {int(number) for item in items for number in item["i"]} == set(range(3, 10))


def parsed(text: bytes) -> Any:
    return np.array(orjson.loads(text), np.float32)


def test_variants_start_with_the_item_and_differ() -> None:
    item = draw(MATRIX)
    template = json_template(item, places_of(item))
    assert np.array_equal(parsed(template.fill(0)), item["x"])
    assert template.variants >= 2**64
    start = 2**63
    keys = {parsed(template.fill(start + step)).tobytes() for step in range(2000)}
    assert len(keys) == 2000


def test_raw_npy_and_json_variants_are_equal() -> None:
    item = draw(MATRIX)
    places = places_of(item)
    for number in (0, 1, 12345678901234567, 2**63):
        text = parsed(json_template(item, places).fill(number))
        raw = np.frombuffer(raw_template(item["x"], places).fill(number), "<f4").reshape(20, 3)
        npy = np.load(io.BytesIO(npy_template(item["x"], places).fill(number)))
        assert np.array_equal(text, raw)
        assert np.array_equal(text, npy)
