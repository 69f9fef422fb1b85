"""Declares how to train a model, for the plain loop here and for export's trainer.

Order, shares and random numbers of a batch depend only on the seed and the step. So a run may stop
at any step and resume on another number of processes, and sees the same samples.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    Sampler,
    default_collate,
    get_worker_info,
)

Tensors = tuple[torch.Tensor, ...]
Samples = Dataset[Any] | Sequence[Any]  # a list is a map-style data set too
Mean = Callable[[Any, torch.Tensor], torch.Tensor]  # outputs and target -> a mean over samples


class Diverged(Exception):
    """A loss is NaN or infinite, so that training cannot continue; the message has the step."""


class TrainingBatch(NamedTuple):
    """A process's share of a batch: the first `sample_count` samples count, the rest is filler."""

    inputs: Tensors
    target: torch.Tensor
    sample_count: int


@dataclass(frozen=True, slots=True)
class Share:
    """The part of each batch for process `rank` of `of` processes."""

    rank: int = 0
    of: int = 1

    def bounds(self, batch: int) -> tuple[int, int]:
        """Return the index of the first sample and of the one after the last."""
        return self.rank * batch // self.of, (self.rank + 1) * batch // self.of


class Rows(Dataset[Tensors]):
    """Samples in memory: the rows of tensors of equal length."""

    def __init__(self, *tensors: torch.Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(self.tensors[0])

    def __getitem__(self, index: int) -> Tensors:
        return tuple(tensor[index] for tensor in self.tensors)

    def batch(self, indices: Sequence[int]) -> Tensors:
        """Return several rows at once."""
        rows = torch.as_tensor(indices)
        return tuple(tensor[rows] for tensor in self.tensors)


def share_right(outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the share of items whose highest output is at the correct index."""
    return (outputs.argmax(-1) == target).float().mean()


def whole(module: nn.Module) -> nn.Module:
    """Return the module itself."""
    return module


@dataclass(frozen=True, slots=True)
class Training:
    """How to train a model.

    Attributes:
        source: names the data, for the manifest.
        data: the training samples: a map-style data set (a list is one), or an `IterableDataset`,
            which every worker of every process reads from its beginning, so its order must be the
            same in all: it may depend on `set_epoch(epoch)`, if it has that method, but not on
            global random numbers.
            A sample is a tuple: the inputs of the model in their order, then the target.
        loss: outputs and target -> the mean loss.
        optimizer: builds the optimizer for the parameters.
        epochs, batch, seed: passes over the data; samples of a step, over all processes; the
            source of all random numbers.
        schedule: builds the schedule of the learning rate for a number of steps; it advances after
            each step. None: the rate is constant.
        evaluation: data that is never trained on; the curves include loss and metrics on it.
        metrics: name -> outputs and target -> a mean over samples.
        keep: which weights `best.ckpt` has: those after the `last` epoch, or the `best`, with the
            lowest loss on `evaluation`. Do not use `best` if `evaluation` is also the held-out
            set: its accuracy would be too high.
        collate: several samples -> one batch of them.
        augment: inputs and random numbers [n, draws], 0 to 1, of the samples -> other inputs.
        draws: how many random numbers `augment` needs per sample.
        part: returns the trained part of the module; its forward returns what `loss` accepts.
        stages: splits the module for a pipeline; None: by the definition's own `stages`.
        samples: of an epoch, for iterable data, which does not know it.
        as_built: keep the weights that the module is built with, such as pretrained ones.
        callbacks: builds callbacks of Lightning for export's trainer. Of each epoch they see
            `on_validation_end`, with its numbers in `trainer.callback_metrics`.
    """

    source: str
    data: Callable[[], Samples]
    loss: Mean
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    epochs: int
    batch: int
    seed: int
    schedule: Callable[[Optimizer, int], LRScheduler] | None = None
    evaluation: Callable[[], Samples] | None = None
    metrics: Mapping[str, Mean] = field(default_factory=dict)
    keep: Literal["last", "best"] = "last"
    collate: Callable[[list[Any]], Sequence[torch.Tensor]] = default_collate
    augment: Callable[[Tensors, torch.Tensor], Tensors] | None = None
    draws: int = 0
    part: Callable[[nn.Module], nn.Module] = whole
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    samples: int | None = None
    as_built: bool = False
    callbacks: Callable[[], Sequence[Any]] | None = None

    def steps(self, data: Samples, window: int = 1) -> int:
        """Return the steps of an epoch; samples that do not fill a batch wait for the next one.

        Args:
            data: the training samples.
            window: batches whose gradients are accumulated; an epoch has whole windows.

        Raises:
            ValueError: if there is no full window, or the number of samples is unknown.
        """
        count = self.samples if isinstance(data, IterableDataset) else len(data)  # type: ignore[arg-type]
        if count is None:
            raise ValueError("iterable data needs `samples`, the number of samples of an epoch")
        if count < self.batch * window:
            least = f"{window} batches" if window > 1 else "one batch"
            raise ValueError(f"{count} samples are less than {least} of {self.batch}")
        return count // (self.batch * window) * window

    def start(self, module: nn.Module) -> None:
        """Draw the initial weights."""
        torch.manual_seed(self.seed)
        for layer in () if self.as_built else module.modules():
            reset = getattr(layer, "reset_parameters", None)
            if reset is not None:
                reset()

    def seed_step(self, step: int, rank: int = 0) -> None:
        """Seed the random numbers of a forward, such as dropout's."""
        torch.manual_seed(self.seed_of(step, rank))

    def seed_of(self, step: int, rank: int) -> int:
        """Return a different seed for each step of each process."""
        return _seed(self.seed, step, rank)

    def learning_batches(
        self,
        data: Samples,
        share: Share = Share(),
        *,
        first: int = 0,
        window: int = 1,
        **options: Any,
    ) -> DataLoader[TrainingBatch]:
        """Return the batches of all epochs from step `first` on; `options` are for the loader."""
        steps = self.steps(data, window)
        if isinstance(data, IterableDataset):
            stream = _Stream(self, data, share, first, steps)
            return DataLoader(stream, batch_size=None, **options)
        order = _Order(self, len(data), share, first, steps)  # type: ignore[arg-type]
        return DataLoader(_BatchDataset(self, data), sampler=order, batch_size=None, **options)

    def evaluation_batches(
        self, data: Samples, share: Share = Share(), **options: Any
    ) -> DataLoader[TrainingBatch]:
        """Return every sample once, in order, in equally many equal batches for each process."""
        if isinstance(data, IterableDataset):
            return DataLoader(_Stream(self, data, share, 0, None), batch_size=None, **options)
        keys = _in_order(self.batch, len(data), share)  # type: ignore[arg-type]
        return DataLoader(_BatchDataset(self, data), sampler=keys, batch_size=None, **options)

    def fit(self, module: nn.Module, progress: Callable[[int, int, str], None]) -> None:
        """Train in this process; with one machine and torch build, all runs give equal weights.

        Raises:
            Diverged: if a loss is NaN or infinite.
        """
        self.start(module)
        data, learner = self.data(), self.part(module)
        optimizer = self.optimizer(learner.parameters())
        steps = self.epochs * self.steps(data)
        schedule = self.schedule(optimizer, steps) if self.schedule else None
        module.train()
        for step, batch in enumerate(self.learning_batches(data)):
            self.seed_step(step)
            loss = self.loss(learner(*batch.inputs), batch.target)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if schedule is not None:
                schedule.step()
            loss_value = loss.item()
            if not math.isfinite(loss_value):
                raise Diverged(
                    f"training diverged: the loss is {loss_value} at step {step + 1} of {steps}; "
                    "try a lower learning rate"
                )
            progress(step + 1, steps, f"loss {loss_value:.3f}")
        module.eval()


class _Key(NamedTuple):
    """A process's samples of a batch, and their random numbers."""

    indices: Sequence[int]
    draws: torch.Tensor | None
    sample_count: int
    seed: int | None = None  # for the data set's own random numbers; None: evaluation


class _BatchDataset(Dataset[TrainingBatch]):
    def __init__(self, how: Training, data: Samples) -> None:
        self.how = how
        self.data = data

    def __getitem__(self, key: _Key) -> TrainingBatch:
        if key.seed is not None:
            _seed_all(key.seed)
        if isinstance(self.data, Rows):
            return _make_batch(self.how, self.data.batch(key.indices), key.draws, key.sample_count)
        samples = [self.data[index] for index in key.indices]
        return _make_batch(self.how, self.how.collate(samples), key.draws, key.sample_count)


class _Order(Sampler[_Key]):
    """Shuffles again in each epoch."""

    def __init__(self, how: Training, count: int, share: Share, first: int, steps: int) -> None:
        self.how, self.count, self.share = how, count, share
        self.first, self.steps = first, steps

    def __len__(self) -> int:
        return self.how.epochs * self.steps - self.first

    def __iter__(self) -> Iterator[_Key]:
        how = self.how
        low, high = self.share.bounds(how.batch)
        order: list[int] = []
        for step in range(self.first, how.epochs * self.steps):
            epoch, at = divmod(step, self.steps)
            if not order or at == 0:
                shuffle = torch.Generator().manual_seed(_seed(how.seed, -1 - epoch))
                order = torch.randperm(self.count, generator=shuffle).tolist()
            start = at * how.batch
            indices, draws = order[start + low : start + high], _draws(how, step, low, high)
            yield _Key(indices, draws, high - low, how.seed_of(step, self.share.rank))


class _Stream(IterableDataset[TrainingBatch]):
    """Reads all data in every process and worker, each of which builds only its own batches.

    Args:
        data: read once per epoch.
        share: of this process.
        first: the first step.
        steps: of an epoch; None: evaluation, all samples once.
    """

    def __init__(
        self, how: Training, data: IterableDataset[Any], share: Share, first: int, steps: int | None
    ) -> None:
        self.how, self.data, self.share, self.first, self.steps = how, data, share, first, steps

    def __iter__(self) -> Iterator[TrainingBatch]:
        worker = get_worker_info()
        number, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        for at, samples in enumerate(self._batches()):
            # the loader reads from its workers in turn, so the batches stay in order
            if at % workers == number:
                yield self._share(samples, self.first + at)

    def _batches(self) -> Iterator[list[Any]]:
        size = self.how.batch
        samples: Iterator[Any] = iter(self.data)
        if self.steps is not None:
            steps_left = self.how.epochs * self.steps - self.first
            samples = itertools.islice(self._epochs(), steps_left * size)
        while chunk := list(itertools.islice(samples, size)):
            yield chunk

    def _epochs(self) -> Iterator[Any]:
        """Yield samples across epochs: those that fill no batch start the next epoch."""
        count = self.how.samples or 0
        begin, skip = divmod(self.first * self.how.batch, count)
        for epoch in range(begin, self.how.epochs):
            if hasattr(self.data, "set_epoch"):
                self.data.set_epoch(epoch)
            position = 0
            for sample in itertools.islice(self.data, count):
                position += 1
                if position > skip:
                    yield sample
            if position < count:
                raise ValueError(
                    f"the data ends after {position} samples, but `samples` says {count}"
                )
            skip = 0

    def _share(self, samples: list[Any], step: int) -> TrainingBatch:
        how = self.how
        low, high = self.share.bounds(how.batch)
        count = min(max(len(samples) - low, 0), high - low)
        share = (samples + samples[-1:] * (how.batch - len(samples)))[low:high]
        draws = None if self.steps is None else _draws(how, step, low, high)
        return _make_batch(how, how.collate(share), draws, count)


def _in_order(batch: int, count: int, share: Share) -> list[_Key]:
    low, high = share.bounds(batch)
    return [
        _Key(
            [min(index, count - 1) for index in range(start + low, start + high)],
            None,
            min(max(count - start - low, 0), high - low),
        )
        for start in range(0, count, batch)
    ]


def _draws(how: Training, step: int, low: int, high: int) -> torch.Tensor | None:
    """Return the random numbers of a process's samples, the same for a sample in any process."""
    if how.augment is None:
        return None
    generator = torch.Generator().manual_seed(_seed(how.seed, step))
    return torch.rand(how.batch, how.draws, generator=generator)[low:high]


def _make_batch(
    how: Training, tensors: Sequence[torch.Tensor], draws: torch.Tensor | None, count: int
) -> TrainingBatch:
    *inputs, target = tensors
    model_inputs = tuple(inputs)
    if how.augment is not None and draws is not None:
        model_inputs = how.augment(model_inputs, draws)
    return TrainingBatch(model_inputs, target, count)


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)


def _seed(*parts: int) -> int:
    """Combine parts to a seed of 32 bits: generators on CPUs ignore further ones."""
    return int(np.random.SeedSequence([each & 0xFFFFFFFF for each in parts]).generate_state(1)[0])
