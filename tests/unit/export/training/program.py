"""`torchlane train` with a catalog of tiny models, as a program of its own.

Processes are started again by their command line: `python -m tests.unit.export.training.program`.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from models.catalog import CATALOG
from models.definitions.definition import Definition
from models.definitions.training import Rows, Training, share_right
from tests.unit.export.definitions import definition

CLASSES = 4
KILLED_AT = "TEST_KILLED_AT_BATCH"


class Network(nn.Module):
    """x [n, 8] -> [n, 4], in two halves."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.front = nn.Sequential(nn.Linear(8, width), nn.Tanh())
        self.back = nn.Sequential(nn.Linear(width, CLASSES))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.back(self.front(x))
        return output


class Planted(Network):
    """NaN where a number is below 0: a logarithm."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(torch.log(x))


class PlantedBackward(Network):
    """NaN in the backward only: the slope of the root at 0, times 0."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        root = torch.sqrt(self.front(x) * 0)
        output: torch.Tensor = self.back(root * 0)
        return output


class Diverging(Network):
    """NaN after a number of training forwards."""

    def __init__(self, good: int = 100) -> None:
        super().__init__()
        self.good = good

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = super().forward(x)
        self.good -= self.training
        return output if self.good >= 0 else output * torch.nan


class PlantedSlow(Network):
    """Decomposes a matrix at each step."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.linalg.svdvals(torch.ones(300, 300))
        return super().forward(x)


class Wide(nn.Module):
    """Its weights are nearly all of its memory."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(8, 2048)
        self.layers = nn.Sequential(*(nn.Linear(2048, 2048) for _ in range(24)))
        self.out = nn.Linear(2048, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.out(self.layers(self.into(x)))
        return output


class Slow(Rows):
    """Each batch takes 20 ms to load."""

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        time.sleep(0.02)
        return super().batch(indices)


class Paced(Rows):
    """Slow enough to be killed in the middle of an epoch; ends at a batch if it shall."""

    batches = 0

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        time.sleep(0.05)
        self.batches += 1
        if str(self.batches) == os.environ.get(KILLED_AT):
            signal.raise_signal(signal.SIGKILL)
        return super().batch(indices)


class Interrupting(Rows):
    """As Ctrl-C in the middle of an epoch: while the 20th batch is loaded."""

    batches = 0

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        self.batches += 1
        if self.batches == 20:
            signal.raise_signal(signal.SIGINT)
        return super().batch(indices)


def rows(seed: int, count: int, kind: type[Rows] = Rows) -> Rows:
    """Points, and which of four quarters of the first two axes they are in."""
    points = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, 8), np.float32))
    return kind(points, (points[:, 0] > 0).long() + 2 * (points[:, 1] > 0).long())


def nan_rows() -> tuple[torch.Tensor, ...]:
    points, target = rows(2, 64).tensors
    return points * torch.nan, target


TRAINING = Training(
    source="points that are drawn",
    data=lambda: rows(1, 512),
    loss=functional.cross_entropy,
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.02),
    epochs=4,
    batch=32,
    seed=7,
    evaluation=lambda: rows(2, 2003),
    metrics={"accuracy": share_right},
)


def halves(module: nn.Module) -> Sequence[nn.Module]:
    assert isinstance(module, Network)
    return module.front, module.back


def interrupted(name: str) -> Programs:
    """The catalog, with a model whose run is interrupted once."""
    training = Programs()[name].training
    assert training is not None
    training = dataclasses.replace(training, data=lambda: rows(1, 512, Interrupting))
    catalog = Programs()
    catalog[name] = dataclasses.replace(catalog[name], training=training)
    return catalog


def of(module: Any, **changes: Any) -> Definition:
    training = dataclasses.replace(TRAINING, **changes)
    from tests.unit.models.manifests import spec  # noqa: PLC0415

    return definition(
        module,
        inputs=(spec("x", shape=(-1, 8)),),
        outputs=(spec("y", shape=(-1, CLASSES)),),
        train=training.fit,
        training=training,
        random_inputs=lambda rng, batch: {"x": rng.standard_normal((batch, 8), np.float32)},
        golden_inputs=lambda: [{"x": np.ones(8, np.float32)}],
        example=lambda: [0.0] * 8,
        held_out=None,
    )


def exploding(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A finite loss with an infinite gradient: weights are NaN before a loss is."""
    root = (output * 0).square().sum().sqrt()
    return functional.cross_entropy(output, target) + root


def late_nan(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """NaN after 600 samples of this process, in the second epoch or later."""
    SEEN.append(len(output) if torch.is_grad_enabled() else 0)
    loss = functional.cross_entropy(output, target)
    return loss * torch.nan if sum(SEEN) > 600 else loss


SEEN: list[int] = []  # samples, by loss


def wrong_loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    table = {"first": 0}
    return output.sum() * table["second"]


class WrongRows(Rows):
    """Has a mistake in the code that loads data."""

    def batch(self, indices: Sequence[int]) -> tuple[torch.Tensor, ...]:
        return tuple(tensor[len(tensor) + indices[0]] for tensor in self.tensors)


def wrong_data() -> Rows:
    raise FileNotFoundError(2, "No such file or directory", "points.csv")


def falling(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """The share of a class that is never right: it does not improve."""
    return (target == CLASSES).float().mean()


def undefined(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return output.sum() * torch.nan


class Frozen(nn.BatchNorm2d):
    """Keeps its statistics, so that an item's gradient does not depend on its batch."""

    def train(self, mode: bool = True) -> Self:
        return super().train(False)


def one_step(name: str) -> Definition:
    """One step with rate 1: what the weights lose are the gradients."""
    definition = CATALOG[name]
    assert definition.training is not None
    training = dataclasses.replace(
        definition.training,
        data=lambda: Rows(*definition.training.data().batch(range(32))),  # type: ignore[union-attr]
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        schedule=None,
        evaluation=None,
        metrics={},
        epochs=1,
        batch=32,
    )

    def build() -> nn.Module:
        module = definition.build()
        for layer in module.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.__class__ = Frozen
        return module

    return dataclasses.replace(definition, build=build, training=training)


def memory() -> Definition:
    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(output, target)

    return of(
        Wide,
        loss=loss,
        data=lambda: rows(1, 24),
        batch=8,
        epochs=1,
        evaluation=None,
        metrics={},
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-5),
    )


def counts() -> list[Any]:
    """Callbacks of Lightning, which takes seconds to import."""
    from tests.unit.export.training.callbacks import Counts  # noqa: PLC0415

    return [Counts()]


def stops_one() -> list[Any]:
    from tests.unit.export.training.callbacks import StopsOne  # noqa: PLC0415

    return [StopsOne()]


class Programs(dict[str, Definition]):
    """Made when they are asked for."""

    MADE: ClassVar[dict[str, Any]] = {
        "digits": lambda: CATALOG["digits"],
        "residual": lambda: CATALOG["residual"],
        "tiny": lambda: of(Network, stages=halves),
        "tied": lambda: of(Network, stages=lambda module: (module.front, module)),
        "counted": lambda: of(Network, callbacks=counts, epochs=9),
        "stopped-by-one": lambda: of(Network, callbacks=stops_one),
        "whole": lambda: of(Network),
        "untrained": lambda: definition(Network),
        "nan": lambda: of(Planted),
        "diverging": lambda: of(Diverging),
        "diverging-late": lambda: of(Network, loss=late_nan, stages=halves),
        "exploding": lambda: of(Network, loss=exploding),
        "evaluated-nan": lambda: of(Network, evaluation=lambda: Rows(*nan_rows())),
        "undefined-metric": lambda: of(Network, metrics={"undefined": undefined}),
        "wrong-loss": lambda: of(Network, loss=wrong_loss),
        "wrong-rows": lambda: of(Network, data=lambda: rows(1, 512, WrongRows)),
        "wrong-data": lambda: of(Network, data=wrong_data),
        "nan-backward": lambda: of(PlantedBackward),
        "slow-operation": lambda: of(PlantedSlow),
        "slow-data": lambda: of(
            Network, data=lambda: rows(1, 1024, Slow), epochs=1, evaluation=None
        ),
        "worse": lambda: of(
            Network, epochs=9, metrics={"calls": falling}, data=lambda: rows(1, 512, Slow)
        ),
        "paced": lambda: of(Network, data=lambda: rows(1, 512, Paced), epochs=6, stages=halves),
        "digits-step": lambda: one_step("digits"),
        "residual-step": lambda: one_step("residual"),
        "wide": memory,
    }

    def __missing__(self, name: str) -> Definition:
        definition: Definition = self.MADE[name]()
        return definition

    def __contains__(self, name: object) -> bool:
        return name in self.MADE

    def __iter__(self) -> Any:
        return iter(self.MADE)


if __name__ == "__main__":
    from export.cli import main

    code = main(sys.argv[1:], Programs())
    sys.exit(code)
