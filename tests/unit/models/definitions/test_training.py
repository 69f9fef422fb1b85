"""Batches of a declared training: whole, shared by processes and workers, and taken up again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from models.definitions.training import Rows, Share, Tensors, Training, TrainingBatch

Sample = tuple[torch.Tensor, torch.Tensor]


class Stream(IterableDataset[Sample]):
    """Samples (i, i) below `count`."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Sample]:
        return ((torch.tensor([float(i)]), torch.tensor(i)) for i in range(self.count))


def rows(count: int) -> Rows:
    return Rows(torch.arange(count, dtype=torch.float32).unsqueeze(1), torch.arange(count))


def noisy(inputs: Tensors, draws: torch.Tensor) -> Tensors:
    return (inputs[0] + draws[:, :1],)


def training(**changes: Any) -> Training:
    fields: dict[str, Any] = {
        "source": "numbers",
        "data": lambda: rows(23),
        "loss": lambda made, target: (made[:, 0] - target).square().mean(),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=1e-4),
        "epochs": 2,
        "batch": 4,
        "seed": 3,
    }
    return Training(**(fields | changes))


def targets(batches: Any) -> list[list[int]]:
    found: list[TrainingBatch] = list(batches)
    return [each.target[: each.sample_count].tolist() for each in found]


class TestLearning:
    def test_epoch_drops_only_the_incomplete_batch(self) -> None:
        batches = targets(training().learning_batches(rows(23)))
        assert [len(each) for each in batches] == [4] * 10
        for epoch in (batches[:5], batches[5:]):
            assert len({number for batch in epoch for number in batch}) == 20
        assert batches[:5] != batches[5:]

    def test_another_seed_gives_another_order(self) -> None:
        one, other = (targets(training(seed=seed).learning_batches(rows(23))) for seed in (3, 4))
        assert one != other

    @pytest.mark.parametrize("of", [2, 3])
    def test_processes_share_the_same_batches(self, of: int) -> None:
        how = training(augment=noisy, draws=2)
        whole = list(how.learning_batches(rows(23)))
        shares = [list(how.learning_batches(rows(23), Share(rank, of))) for rank in range(of)]
        for batch, *parts in zip(whole, *shares, strict=True):
            assert torch.equal(torch.cat([each.inputs[0] for each in parts]), batch.inputs[0])
            assert torch.equal(torch.cat([each.target for each in parts]), batch.target)
            assert sum(each.sample_count for each in parts) == batch.sample_count == 4

    @pytest.mark.parametrize("data", [rows(23), Stream(23)], ids=["map", "stream"])
    def test_resumed_training_has_the_same_batches(self, data: Any) -> None:
        how = training(augment=noisy, draws=2, samples=23)
        whole, rest = (list(how.learning_batches(data, first=first)) for first in (0, 7))
        assert len(rest) == 3
        for one, other in zip(whole[7:], rest, strict=True):
            assert torch.equal(one.inputs[0], other.inputs[0])
            assert torch.equal(one.target, other.target)


class Drawing(Rows):
    """Draws numbers of its own, as transforms of pictures do."""

    def batch(self, indices: Sequence[int]) -> Tensors:
        drawn = [random.random(), float(np.random.random()), float(torch.rand(()))]
        return torch.tensor([drawn] * len(indices)), torch.as_tensor(indices)


def test_random_draws_depend_on_step_and_process() -> None:
    def drawn(rank: int = 0, **options: Any) -> torch.Tensor:
        data = Drawing(torch.arange(23))
        batches = training().learning_batches(data, Share(rank, 2), **options)
        return torch.stack([each.inputs[0][0] for each in batches])

    alone = drawn()
    assert len(set(alone.flatten().tolist())) == 30
    assert torch.equal(drawn(num_workers=2), alone)
    assert torch.equal(drawn(first=7), alone[7:])
    assert not (drawn(rank=1) == alone).any()


class TestStream:
    @pytest.mark.parametrize("workers", [0, 2])
    def test_ranks_and_workers_share_each_sample_once(self, workers: int) -> None:
        how = training(samples=23, epochs=2)
        seen = Counter[int]()
        orders = []
        for rank in range(2):
            share = Share(rank, 2)
            found = targets(how.learning_batches(Stream(23), share, num_workers=workers))
            seen.update(number for batch in found for number in batch)
            orders.append(found)
        # 40 of 2 x 23: the three that fill no batch of the first epoch begin the second one
        assert seen == dict.fromkeys(range(17), 2) | dict.fromkeys(range(17, 23), 1)
        assert [len(each) for each in orders] == [10, 10]
        assert [one + other for one, other in zip(*orders, strict=True)][:2] == [
            [0, 1, 2, 3],
            [4, 5, 6, 7],
        ]

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("data", [rows(23), Stream(23)], ids=["map", "stream"])
    def test_every_sample_is_evaluated_once(self, data: Any, workers: int) -> None:
        how, seen = training(), Counter[int]()
        for rank in range(2):
            batches = list(how.evaluation_batches(data, Share(rank, 2), num_workers=workers))
            assert [len(each.target) for each in batches] == [2] * 6  # FSDP needs equal numbers
            seen.update(number for batch in targets(batches) for number in batch)
        assert seen == dict.fromkeys(range(23), 1)

    def test_early_end_of_data_is_an_error(self) -> None:
        with pytest.raises(ValueError, match="ends after 10 samples, but `samples` says 23"):
            list(training(samples=23).learning_batches(Stream(10)))


@pytest.mark.parametrize(
    ("data", "changes", "told"),
    [(Stream(9), {}, "needs `samples`"), (rows(3), {}, "3 samples are less than one batch of 4")],
)
def test_data_without_steps_is_refused(data: Any, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        training(**changes).steps(data)


def test_plain_loop_learns_and_is_reproducible() -> None:
    how = training(epochs=20, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3))
    notes: list[str] = []
    made = []
    for _ in range(2):
        module = torch.nn.Linear(1, 1)
        how.fit(module, lambda done, total, note: notes.append(f"{done}/{total}"))
        assert not module.training
        made.append(module.weight.item())
    assert made[0] == made[1] == pytest.approx(1, abs=0.1)
    assert notes[-1] == "100/100"
