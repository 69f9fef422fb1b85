"""Items of different sizes as one batch, and what is cut off its outputs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.padding import Padding, check_padding, padding_of, size_class
from models.tensors import Array, Dimension, TensorSpec

SEQ = Dimension(name="seq", least=1, most=64, mask="mask")
IDS = TensorSpec(name="ids", dtype="int64", shape=(-1, -1), dimensions=(SEQ,), fill=7)
MASK = TensorSpec(name="mask", dtype="int64", shape=(-1, -1), dimensions=(SEQ,))
SCALE = TensorSpec(name="scale", dtype="float32", shape=(-1,))
SECOND = TensorSpec(name="pairs", dtype="float32", shape=(-1, 2, -1), dimensions=(SEQ,))
SUM = TensorSpec(name="sum", dtype="float32", shape=(-1,))
EACH = TensorSpec(
    name="each", dtype="float32", shape=(-1, -1), dimensions=(Dimension(name="seq", most=64),)
)
INPUTS = (IDS, MASK, SECOND, SCALE)


def item(size: int) -> dict[str, Array]:
    return {
        "ids": np.arange(size),
        "mask": np.ones(size, np.int64),
        "pairs": np.full((2, size), size, np.float32),
        "scale": np.array(size, np.float32),
    }


def padding() -> Padding:
    made = padding_of(INPUTS, (SUM, EACH))
    assert made is not None
    return made


def test_batch_is_padded_to_its_longest_item() -> None:
    batch = padding().stack([item(3), item(1)])
    assert batch["ids"].tolist() == [[0, 1, 2], [0, 7, 7]]
    assert batch["mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["pairs"].tolist() == [[[3, 3, 3]] * 2, [[1, 0, 0]] * 2]
    assert batch["scale"].tolist() == [3, 1]
    assert batch["ids"].dtype == np.int64


def test_buffers_are_filled_in_place() -> None:
    items = [item(2), item(4)]
    shapes = padding().batch_shapes(items)
    assert shapes == {"ids": (2, 4), "mask": (2, 4), "pairs": (2, 2, 4), "scale": (2,)}
    into = {name: np.full(shape, 99, items[0][name].dtype) for name, shape in shapes.items()}
    batch = padding().stack(items, into)
    for name, array in padding().stack(items).items():
        assert batch[name] is into[name]
        assert (batch[name] == array).all()


def test_only_outputs_with_padding_are_trimmed() -> None:
    outputs: dict[str, Array] = {"sum": np.array(5.0), "each": np.arange(9.0)}
    cut = padding().trim(outputs, 4)
    assert cut["each"].tolist() == [0, 1, 2, 3]
    assert cut["sum"] == 5
    assert len(outputs["each"]) == 9


def test_no_mask_means_no_padding() -> None:
    free = IDS.model_copy(update={"dimensions": (Dimension(name="seq", most=64),)})
    assert padding_of((free,), (SUM,)) is None


@pytest.mark.parametrize(
    ("inputs", "outputs", "problem"),
    [
        ((IDS,), (SUM,), "the mask of 'seq' is 'mask', which is not an input"),
        ((IDS, MASK.model_copy(update={"fill": 1})), (SUM,), "padded with 0, not 1"),
        (
            (IDS, MASK.model_copy(update={"shape": (-1, 2, -1)})),
            (SUM,),
            r"'mask' must have the shape \[-1,seq\]",
        ),
        (
            (MASK, SECOND.model_copy(update={"shape": (-1, -1, -1), "dimensions": (SEQ, SEQ)})),
            (SUM,),
            "'pairs' has 'seq' twice",
        ),
        ((IDS, MASK), (EACH.model_copy(update={"dimensions": (Dimension(name="x"),)}),), "'x'"),
        (
            (
                IDS,
                MASK,
                SECOND.model_copy(update={"dimensions": (SEQ.model_copy(update={"name": "t"}),)}),
            ),
            (SUM,),
            "only one dimension can be padded, got 'seq', 't'",
        ),
    ],
)
def test_contradictions_are_refused(
    inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], problem: str
) -> None:
    check_padding(INPUTS, (SUM, EACH))
    with pytest.raises(ValueError, match=problem):
        check_padding(inputs, outputs)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_size_classes_ascend_and_stay_close(one: int, other: int) -> None:
    assert one <= size_class(one) <= one * 9 / 8 + 1e-9
    assert size_class(size_class(one)) == size_class(one)
    if one <= other:
        assert size_class(one) <= size_class(other)
