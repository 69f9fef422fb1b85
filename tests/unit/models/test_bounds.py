"""Ranges of integers, and axes that have one size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from models.bounds import mismatch, out_of_range, safe_range, shared_axes
from models.tensors import Dimension, Dtype, TensorSpec
from tests.unit.models.manifests import make_manifest, spec

SEQ = Dimension(name="seq", most=9)
IDS = spec("ids", "int64", (-1, -1)).model_copy(update={"dimensions": (SEQ,)})
SQUARE = spec("links", shape=(-1, 2, -1, -1)).model_copy(update={"dimensions": (SEQ, SEQ)})


def ranged(minimum: int | None, maximum: int | None, dtype: Dtype = "int8") -> TensorSpec:
    return TensorSpec(name="x", dtype=dtype, shape=(-1, 3), minimum=minimum, maximum=maximum)


@pytest.mark.parametrize(
    ("shapes", "told"),
    [
        ({"ids": (4,), "links": (2, 4, 4)}, None),
        (
            {"ids": (4,), "links": (2, 4, 5)},
            "axis 2 has size 5, but axis 0 of 'ids' has size 4: both are 'seq' and must be equal",
        ),
        (
            {"ids": (3,), "links": (2, 4, 4)},
            "axis 1 has size 4, but axis 0 of 'ids' has size 3: both are 'seq' and must be equal",
        ),
    ],
)
def test_axes_with_one_name_share_a_size(
    shapes: dict[str, tuple[int, ...]], told: str | None
) -> None:
    found = mismatch(shared_axes([IDS, SQUARE]), shapes)
    assert (None if found is None else str(found)) == told


def test_name_that_occurs_once_is_not_shared() -> None:
    assert shared_axes([IDS, spec("x", shape=(-1, -1))]) == {}
    assert list(shared_axes([SQUARE])) == ["seq"]


def test_one_name_has_one_set_of_bounds() -> None:
    other = IDS.model_copy(update={"name": "mask", "dimensions": (Dimension(name="seq", most=8),)})
    with pytest.raises(ValidationError, match="'seq' has sizes of 0 to 9 in one place and of 0"):
        make_manifest([IDS, other])


@pytest.mark.parametrize(
    ("minimum", "maximum", "numbers", "wrong"),
    [
        (0, 49, [0, 49, 3], None),
        (0, 49, [0, 50, 51], 51),
        (0, 49, [-1, -2, 99], -2),
        (0, None, [127, 0, 1], None),
        (None, 49, [-128, 50, 0], 50),
        (None, None, [-128, 127, 0], None),
        (0, 49, [], None),
    ],
)
def test_number_outside_its_range_is_found(
    minimum: int | None, maximum: int | None, numbers: list[int], wrong: int | None
) -> None:
    assert out_of_range(ranged(minimum, maximum), np.array(numbers, np.int8)) == wrong


LIMITS = st.none() | st.integers(-128, 127)


@given(LIMITS, LIMITS)
def test_drawn_integers_are_in_range(minimum: int | None, maximum: int | None) -> None:
    if minimum is not None and maximum is not None and minimum > maximum:
        return
    low, high = safe_range(ranged(minimum, maximum))
    assert out_of_range(ranged(minimum, maximum), np.array([low, high])) is None
    assert -128 <= low <= high <= 127
    if minimum is None or maximum is None:
        assert high - low <= 1
        if out_of_range(ranged(minimum, maximum), np.array([0, 1])) is None:
            assert (low, high) == (0, 1)
