"""The models for overload: one of linear cost, one dominated by HTTP cost, and one for texts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from loadtests.bench.answers import TOLERANCE, Right, answers_of
from loadtests.bench.own_models import MINILM, linear_artifact, newest_artifact
from loadtests.bench.servers import Cores, pinned
from loadtests.bench.workloads import (
    INFINITY,
    MOSEC,
    OURS,
    PLAIN,
    PLAIN_ENCODER,
    Workload,
)

CaseName = Literal["linear", "digits", "minilm"]
NAMES: tuple[CaseName, ...] = ("linear", "digits", "minilm")
USUAL = NAMES[:2]  # measured by default
SERVERS = (OURS, PLAIN, MOSEC, INFINITY, PLAIN_ENCODER)
EXACT = 1e-6  # float32 in JSON; inputs from one template are 30 times as far apart


@dataclass(frozen=True, slots=True)
class Case:
    """A model and its requests.

    Attributes:
        folder: of its artifact.
        workload: the format of all requests.
        right: the correct answers.
        tolerance: the largest allowed error of an answer.
        one_by_one: items cost the same in any batch, so the share that must be rejected is known.
    """

    name: CaseName
    title: str
    folder: Path
    workload: Workload
    right: Right
    tolerance: float
    one_by_one: bool


@contextlib.contextmanager
def linear(item_ms: float, cores: Cores) -> Iterator[Case]:
    """Build the model of linear cost.

    Raises:
        ModelError: if that fails.
    """
    workload = Workload("linear", "a model of linear cost, raw bytes", "binary", 8, (PLAIN, MOSEC))
    with tempfile.TemporaryDirectory() as folder:
        with pinned(cores.server):
            made = linear_artifact(Path(folder), item_ms)
        title = f"a model of linear cost, about {item_ms:g} ms per item"
        yield Case("linear", title, made, workload, lambda items: 2 * items, EXACT, True)


@contextlib.contextmanager
def digits(artifacts: Path) -> Iterator[Case]:
    """Provide the digits model, with a process for correct answers."""
    workload = Workload("digits", "digits, single JSON", "json", 64, (PLAIN, MOSEC))
    folder = newest_artifact(artifacts)
    with answers_of(folder) as right:
        title = "digits, JSON of 8.7 KB"
        yield Case("digits", title, folder, workload, right, TOLERANCE, False)


@contextlib.contextmanager
def minilm(artifacts: Path) -> Iterator[Case]:
    """Provide the sentence encoder, with a process for correct answers."""
    others = (INFINITY, PLAIN_ENCODER)
    workload = Workload("minilm", "single sentences", "json", 64, others, model="minilm")
    folder = newest_artifact(artifacts, MINILM)
    with answers_of(folder) as right:
        title = "minilm, single sentences of 7 to 75 tokens"
        yield Case("minilm", title, folder, workload, right, TOLERANCE, False)
