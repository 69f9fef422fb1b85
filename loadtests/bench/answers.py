"""Right answers, asked of a process that runs the plain script, and what is judged by them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from loadtests.bench.bodies import Bodies
from loadtests.bench.dialects import AnswerError, Dialect
from loadtests.bench.reference import read_framed, write_framed
from models.tensors import Array

TOLERANCE = 1e-4
LEAST_SPREAD = 1e-3  # between the answers to different inputs: equal ones would prove nothing


class CheckError(Exception):
    """A number of this benchmark would not mean what it says; the message says why."""


class Answers:
    """What the plain script answers, by a process that is ready."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdin is None or process.stdout is None:
            raise ValueError("the process needs pipes")
        self._in: IO[bytes] = process.stdin
        self._out: IO[bytes] = process.stdout
        self._receive()

    def scores(self, items: Array) -> Array:
        """float32 [n, *shape] -> float32 [n, k].

        Raises:
            CheckError: if the process is gone.
        """
        write_framed(self._in, items)  # type: ignore[arg-type]
        return self._receive()

    def _receive(self) -> Array:
        array = read_framed(self._out)  # type: ignore[arg-type]
        if array is None:
            raise CheckError("the process that knows right answers ended; see what it wrote above")
        return array


@contextlib.contextmanager
def answers_of(folder: Path) -> Iterator[Answers]:
    """A process with the model of this artifact; ended when the block is left."""
    command = [sys.executable, "-m", "loadtests.bench.reference", str(folder)]
    with subprocess.Popen(  # nosec B603 # a module of ours
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            yield Answers(process)
        finally:
            process.terminate()


def known(bodies: Bodies, numbers: range, answers: Answers) -> list[Array]:
    """The right scores [items, k] of each of these requests.

    Raises:
        CheckError: if the model answers the same to all of them.
    """
    items = np.concatenate([bodies.inputs(number) for number in numbers])
    scores = answers.scores(items)
    if len(scores) > 1 and float(np.ptp(scores, axis=0).max()) < LEAST_SPREAD:
        raise CheckError(f"{len(items)} different inputs have one answer: a check proves nothing")
    per_request = len(items) // len(numbers)
    return [scores[at : at + per_request] for at in range(0, len(scores), per_request)]


def problem(
    dialect: Dialect, status: int, content: bytes, right: Array, tolerance: float = TOLERANCE
) -> str | None:
    """What is wrong with an answer; None if it is right.

    Args:
        dialect: the server's.
        status: of HTTP.
        content: the body.
        right: scores [items, k].
        tolerance: how far a score may be from its right one.
    """
    if status != 200:
        return f"{status}: {content[:300].decode(errors='replace')}"
    try:
        scores = dialect.scores(content, many=len(right) > 1)
    except AnswerError as error:
        return str(error)
    if scores is None:
        return None
    if scores.shape != right.shape:
        return f"scores {list(scores.shape)} instead of {list(right.shape)}"
    gaps = np.abs(scores - right)
    at = np.unravel_index(np.argmax(np.where(np.isnan(gaps), np.inf, gaps)), gaps.shape)
    if not gaps[at] <= tolerance:  # NaN is not either
        return f"score {scores[at]:.6g} instead of {right[at]:.6g} (item {at[0]}, class {at[1]})"
    return None
