"""A batch's outputs become an answer for each item, whatever they look like in memory."""

from __future__ import annotations

import numpy as np
import pytest

from app.backends.fake import FakeBackend
from app.engine.batch_runner import SHARED_ROW_BYTES, Contract, run_batch
from app.errors import ModelError, ReplicaError
from app.types import Array, Arrays, Item, Outcome
from tests.unit.app.engine.harness import item, replay, value_of


def answers(output: Array) -> list[Outcome | None]:
    """Of a model that answers this to a batch of as many items."""
    backend = FakeBackend(lambda inputs: {"value": output})
    backend.load()
    items: list[Item] = [item(n) for n in range(len(output))]
    contract = Contract(("value",), replay, finish=lambda outputs: outputs)
    return list(run_batch(backend, items, contract).outcomes)


@pytest.mark.parametrize(
    "output",
    [
        np.arange(12, dtype=np.float32).reshape(3, 4),
        np.arange(12, dtype=np.float32).reshape(4, 3).T,
        np.arange(24, dtype=np.float32).reshape(3, 2, 2, 2).transpose(0, 2, 3, 1),
        np.arange(3, dtype=np.int64),
        np.arange(3 * 2000, dtype=np.float32).reshape(3, 2000),
    ],
    ids=["rows", "columns", "channels last", "numbers", "large rows"],
)
def test_each_item_gets_a_read_only_contiguous_row(output: Array) -> None:
    for number, outcome in enumerate(answers(output)):
        assert isinstance(outcome, dict)
        row = outcome["value"]
        assert isinstance(row, np.ndarray)
        np.testing.assert_array_equal(row, output[number])
        assert row.flags.c_contiguous
        assert not row.flags.writeable
    assert output.flags.writeable  # it is the backend's


def test_a_large_row_does_not_keep_its_batch_alive() -> None:
    count = SHARED_ROW_BYTES // 4
    for floats, shared in ((count, True), (count + 1, False)):
        first, second = answers(np.zeros((2, floats), np.float32))
        assert isinstance(first, dict)
        assert isinstance(second, dict)
        bases = first["value"].base, second["value"].base
        assert (bases[0] is not None and bases[0] is bases[1]) is shared


class Reusing:
    """A model that answers 2 x, always in the same memory; it fails on a batch with a 3 in it."""

    def __init__(self) -> None:
        self.buffer = np.zeros((8, 1), np.float32)

    def __call__(self, inputs: Arrays) -> Arrays:
        x = inputs["x"]
        if (x == 3).any():
            raise ModelError("three")
        np.multiply(x, 2, out=self.buffer[: len(x)])
        return {"value": self.buffer[: len(x)]}


def test_backend_may_reuse_its_output_memory() -> None:
    backend = FakeBackend(Reusing())
    contract = Contract(("value",), replay, finish=lambda outputs: outputs)
    first = run_batch(backend, [item(n) for n in (0, 1, 2, 3)], contract)  # is split
    second = run_batch(backend, [item(n) for n in (7, 8)], contract)
    answered = [value_of(outcome) for outcome in (*first.outcomes, *second.outcomes) if outcome]
    assert answered == [0, 2, 4, "backend_failed", 14, 16]


class Breaking:
    """Answers 2 x; a 3 fails, and from a 9 on nothing works, golden examples neither."""

    def __init__(self) -> None:
        self.broken = False

    def __call__(self, inputs: Arrays) -> Arrays | None:
        self.broken = self.broken or bool((inputs["x"] == 9).any() and len(inputs["x"]) <= 2)
        if self.broken or (inputs["x"] == 3).any() or len(inputs["x"]) > 2:
            raise ModelError("it fails")
        return None


@pytest.mark.parametrize(
    ("batch", "left_to_others"),
    [
        pytest.param((1, 2, 5, 9), [5, 9], id="at the end"),
        pytest.param((3, 2, 1, 4, 9, 5, 6, 7), [9, 5, 6, 7], id="after culprits and a good probe"),
        pytest.param((3, 9), [3, 9], id="after a culprit that nothing vouches for"),
        pytest.param((9,), [9], id="alone"),
    ],
)
def test_items_of_a_suspect_replica_are_not_blamed(
    batch: tuple[int, ...], left_to_others: list[int]
) -> None:
    contract = Contract(("value",), replay, finish=lambda outputs: outputs)
    report = run_batch(FakeBackend(Breaking()), [item(n) for n in batch], contract)
    assert isinstance(report.fault, ReplicaError)
    left = [n for n, outcome in zip(batch, report.outcomes, strict=True) if outcome is None]
    assert left == left_to_others
    for n, outcome in zip(batch, report.outcomes, strict=True):
        if outcome is not None:
            assert value_of(outcome) == ("backend_failed" if n == 3 else 2 * n)
