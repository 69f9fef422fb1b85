"""Runs a model on inputs that may exceed its limits, and finds these limits."""

from __future__ import annotations

import enum
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import torch

from export.errors import reason
from export.probing.examples import Examples, Shapes
from export.probing.samples import SEED, draw, narrow, sample_bytes
from export.reading.model_files import FAILURES
from models.codec_specs import TensorCodecSpec
from models.runtimes.forms import input_tensors
from models.tensors import Array, Arrays, TensorSpec

MAX_SAMPLE_BYTES = 64 * 1024 * 1024
NEAR = 1e-3  # of two answers that differ by rounding: relative to the number, and to the largest
NOT_FINITE = "NaN or infinite numbers"
SLOW_S = 0.5  # after a run that takes longer, no larger input is tried
# Messages about memory, which depend on the machine, not on the model. They are searched in a
# single line: the whole message may contain the model's source.
NO_MEMORY = ("can't allocate memory", "bad_alloc", "could not create", "out of memory", "overflow")


class Outcome(enum.Enum):
    """The result of a run."""

    WORKS = enum.auto()
    FAILS = enum.auto()
    UNCLEAR = enum.auto()


Try: TypeAlias = Callable[[int], Outcome]


class Trials:
    """Runs a model on one item at a time.

    Args:
        module: on the CPU.
        examples: real inputs; None: samples are random.

    Attributes:
        failure: why the last failed run failed.
        took_s: seconds of the last run.
        stopped: the number at which the last search for a limit was given up, and why; None: it was
            not.
    """

    def __init__(self, module: Callable[..., object], examples: Examples | None = None) -> None:
        self._module = module
        self._source = examples or TensorCodecSpec()
        self.failure = ""
        self.took_s = 0.0
        self.stopped: tuple[int, str] | None = None

    def run(
        self,
        inputs: Sequence[TensorSpec],
        shapes: Shapes,
        numbers: Mapping[str, Array] | None = None,
        *,
        finite: bool = False,
    ) -> Outcome:
        """Run the model.

        Args:
            inputs: of the model.
            shapes: of the item.
            numbers: by input, with the batch axis, instead of drawn ones.
            finite: whether NaN or infinity counts as a failure.
        """
        if sample_bytes(inputs, 1, shapes) > MAX_SAMPLE_BYTES:
            return Outcome.UNCLEAR
        outcome, outputs = self._forward(inputs, {**self.sample(inputs, shapes), **(numbers or {})})
        if finite and outcome is Outcome.WORKS and not _is_finite(outputs):
            self.failure = NOT_FINITE
            return Outcome.FAILS
        return outcome

    def run_among_others(
        self, inputs: Sequence[TensorSpec], shapes: Shapes, numbers: Mapping[str, Array]
    ) -> Outcome:
        """Run the model on an item alone and between two others: a changed answer is a failure.

        An index may be in the range of a whole batch, whose items a model has concatenated.

        Args:
            inputs: of the model.
            shapes: of the item.
            numbers: by input, with the batch axis, instead of drawn ones.
        """
        if sample_bytes(inputs, 3, shapes) > MAX_SAMPLE_BYTES:
            return Outcome.UNCLEAR
        item = {**self.sample(inputs, shapes), **numbers}
        outcome, alone = self._forward(inputs, item)
        if outcome is not Outcome.WORKS:
            return outcome
        took_s = self.took_s
        others = self.sample(inputs, shapes, batch=3)  # the first may equal the item
        batch = {
            name: np.concatenate([around[1:2], item[name], around[2:]])
            for name, around in others.items()
        }
        outcome, together = self._forward(inputs, batch)
        self.took_s = took_s
        if outcome is Outcome.WORKS and not _has_row(together, 1, alone):
            self.failure = "the answer then depends on the other items of a batch"
            return Outcome.FAILS
        return outcome

    def sample(self, inputs: Sequence[TensorSpec], shapes: Shapes, batch: int = 1) -> Arrays:
        """Draw the same items at every call, with numbers for any model, and a batch axis."""
        rng = np.random.default_rng(SEED)
        return draw(narrow(inputs), self._source, rng, batch, shapes)

    def _forward(self, inputs: Sequence[TensorSpec], sample: Arrays) -> tuple[Outcome, object]:
        """Return whether a forward works, and its outputs."""
        outputs: object = None
        began = time.perf_counter()
        try:
            with torch.inference_mode(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about tried values do not matter
                outputs = self._module(*input_tensors(sample, inputs))
        except FAILURES as error:
            self.failure = reason(error)
            is_memory = isinstance(error, MemoryError) or any(
                each in self.failure for each in NO_MEMORY
            )
            return Outcome.UNCLEAR if is_memory else Outcome.FAILS, None
        finally:
            self.took_s = time.perf_counter() - began
        return Outcome.WORKS, outputs

    def limit(self, attempt: Try, inside: int, ways: Sequence[int]) -> int | None:
        """Return the last number that works, if all tried numbers beyond it fail.

        The search is given up at a number that takes too long or too much memory; see `stopped`.

        Args:
            attempt: tries a number.
            inside: a number that works.
            ways: numbers at increasing distance from it.
        """
        outside: int | None = None
        self.stopped = None
        for number in ways:
            outcome = attempt(number)
            if outside is not None:
                if outcome is Outcome.WORKS:
                    return None
            elif outcome is Outcome.FAILS:
                outside = number
            elif outcome is Outcome.WORKS and self.took_s < SLOW_S:
                inside = number
            else:
                slow = outcome is Outcome.WORKS
                why = f"takes {self.took_s:.1f} s" if slow else "takes too much memory"
                self.stopped = number, why
                return None
        edge = None if outside is None else self.edge(attempt, inside, outside)
        if edge is None or outside is None:
            return None
        before = edge - 1 if outside > edge else edge + 1
        # If it fails, sizes may have to be multiples of some number.
        return edge if attempt(before) is Outcome.WORKS else None

    def edge(self, attempt: Try, inside: int, outside: int) -> int | None:
        """Return the last working number between one that works and one that fails."""
        while abs(outside - inside) > 1:
            middle = (inside + outside) // 2
            outcome = attempt(middle)
            if outcome is Outcome.UNCLEAR:
                return None
            if outcome is Outcome.WORKS:
                inside = middle
            else:
                outside = middle
        return inside


def _is_finite(outputs: object) -> bool:
    return all(bool(torch.isfinite(each).all()) for each in _tensors(outputs))


def _has_row(batch: object, row: int, alone: object) -> bool:
    """Whether a row of a batch's outputs is the answer to an item alone, apart from rounding."""
    for many, one in zip(_tensors(batch), _tensors(alone), strict=True):
        if many.shape[1:] != one.shape[1:] or len(many) <= row:
            return False
        answer, expected = many[row], one[0]
        if not expected.dtype.is_floating_point:
            if not torch.equal(answer, expected):
                return False
        else:
            near = (
                NEAR * float(expected.abs().nan_to_num(0, 0, 0).max()) if expected.numel() else 0.0
            )
            if not torch.allclose(answer, expected, rtol=NEAR, atol=near, equal_nan=True):
                return False
    return True


def _tensors(outputs: object) -> list[torch.Tensor]:
    values = list(outputs.values()) if isinstance(outputs, dict) else outputs
    several = values if isinstance(values, tuple | list) else (values,)
    return [each for each in several if isinstance(each, torch.Tensor)]
