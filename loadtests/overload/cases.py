"""The two models: one whose cost is linear in the batch, and one where HTTP costs as much."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from loadtests.bench.answers import TOLERANCE, Answers, answers_of
from loadtests.bench.bodies import Bodies
from loadtests.bench.workloads import MOSEC, OURS, PLAIN, Workload
from loadtests.overload import linear_model
from models.manifest import MANIFEST_FILE, Manifest
from models.tensors import Array

CaseName = Literal["linear", "digits"]
NAMES: tuple[CaseName, ...] = ("linear", "digits")
SERVERS = (OURS, PLAIN, MOSEC)
CHUNK = 1024  # requests whose right answers are asked for at once
EXACT = 1e-6  # float32 as JSON says it; inputs of one template are 30 times as far apart

Right = Callable[[Bodies, Sequence[int]], Array]


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and what is sent to it.

    Attributes:
        folder: of its artifact.
        workload: of the closed loop that finds the capacity, and the form of all requests.
        right: the right scores [n, k] of the requests with these numbers.
        tolerance: how far an answer may be from them.
        one_by_one: items cost the same in any batch, so that it can be said what must be refused.
    """

    name: CaseName
    title: str
    folder: Path
    manifest: Manifest
    workload: Workload
    right: Right
    tolerance: float
    one_by_one: bool


LINEAR = Workload("linear", "a model of linear cost, raw bytes", "binary", 8, (PLAIN, MOSEC))
DIGITS = Workload("digits", "digits, single JSON", "json", 64, (PLAIN, MOSEC))


def linear(models: Path, item_ms: float) -> Case:
    """The model of linear cost, made now.

    Raises:
        ModelError: if that fails.
    """
    folder = linear_model.artifact(models, item_ms)
    title = f"a model of linear cost, some {item_ms:g} ms an item"
    return Case("linear", title, folder, _manifest(folder), LINEAR, _doubled, EXACT, True)


@contextlib.contextmanager
def digits(folder: Path) -> Iterator[Case]:
    """The digits model, with a process beside that knows right answers."""
    with answers_of(folder) as answers:
        title = "digits, JSON of 8.7 KB"
        right = _asked(answers)
        yield Case("digits", title, folder, _manifest(folder), DIGITS, right, TOLERANCE, False)


def _manifest(folder: Path) -> Manifest:
    return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())


def _doubled(bodies: Bodies, numbers: Sequence[int]) -> Array:
    doubled: Array = 2 * np.concatenate([bodies.inputs(number) for number in numbers])
    return doubled


def _asked(answers: Answers) -> Right:
    def right(bodies: Bodies, numbers: Sequence[int]) -> Array:
        parts = []
        for at in range(0, len(numbers), CHUNK):
            items = [bodies.inputs(number) for number in numbers[at : at + CHUNK]]
            parts.append(answers.scores(np.concatenate(items)))
        return np.concatenate(parts)

    return right
