"""Probes a model's inputs by running it: equal sizes, bounds of sizes, ranges.

A limit is reported only if a value beyond it failed, and everything tried further fails as well;
the rest stays open. Values from the command line are checked and never changed.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from export.errors import UsageError
from export.probing.examples import Examples, Shapes
from export.probing.samples import SEED, draw
from export.probing.trials import NOT_FINITE, Outcome, Trials, Try
from export.reading.declared import DeclaredInput, Range, Unit, change_axes, units_of
from models.bounds import near_zero
from models.codec_specs import TensorCodecSpec
from models.tensors import FREE_MOST, Array, TensorSpec

LARGEST_SIZE = 4096
LARGEST_NUMBER = 2**20  # the vocabularies of language models have up to 2**18 entries
MAX_PLACES = 1024  # places of an item at which a number is tried alone
MAX_UNITS = 7  # free axes whose combinations of two sizes are all tried
BUDGET_S = 40.0
NAMES = ("n", "m", "k", "p", "q", "r")

End = Literal["least", "most"]


@dataclass(frozen=True, slots=True)
class Findings:
    """The findings so far.

    Attributes:
        inputs: including the findings.
        notes: a sentence on each finding.
        trying: what is tried next.
    """

    inputs: tuple[DeclaredInput, ...]
    notes: tuple[str, ...] = ()
    trying: str = ""


class Prober:
    """Runs a model on samples that grow, shrink and differ, one item at a time.

    Args:
        module: on the CPU; it accepts samples of `shapes`.
        inputs: as declared.
        shapes: one or two, on which it ran.
        tell: called with each finding at once.
        examples: real inputs, of which the first shapes are one; None: samples are random.
    """

    def __init__(
        self,
        module: Callable[..., object],
        inputs: Sequence[DeclaredInput],
        shapes: Sequence[Shapes],
        tell: Callable[[Findings], None],
        examples: Examples | None = None,
    ) -> None:
        self._trials = Trials(module, examples)
        self._inputs = tuple(inputs)
        self._shapes = tuple(shapes)
        self._tell = tell
        self._notes: list[str] = []
        self._ends_at = time.perf_counter() + BUDGET_S

    def learn(self) -> Findings:
        """Try everything; return the findings.

        Raises:
            UsageError: if the model does not accept the declared inputs.
        """
        for trying, learn in self._steps():
            if time.perf_counter() > self._ends_at:
                self._notes.append(f"{trying}: not tried, because the model is slow; left open")
                continue
            self._tell(Findings(self._inputs, tuple(self._notes), trying))
            learn()
        findings = Findings(self._inputs, tuple(self._notes))
        self._tell(findings)
        return findings

    def _steps(self) -> Iterator[tuple[str, Callable[[], None]]]:
        yield "which sizes must be equal", self._learn_equal
        for at in range(len(units_of(self._inputs))):
            label = units_of(self._inputs)[at].label
            yield f"the largest size of {label}", functools.partial(self._learn_size, at, "most")
            yield f"the smallest size of {label}", functools.partial(self._learn_size, at, "least")
        for at, each in enumerate(self._inputs):
            if (
                np.dtype(each.dtype).kind == "i" or each.range is not None
            ):  # a uint8 is not an index
                yield f"the range of {each.name!r}", functools.partial(self._learn_range, at)
        masks = {axis.mask for each in self._inputs for axis in each.free}
        for at, each in enumerate(self._inputs):
            if each.free and np.dtype(each.dtype).kind in "bi" and each.name not in masks:
                yield f"only zeros in {each.name!r}", functools.partial(self._try_zeros, at)

    def _learn_equal(self) -> None:
        """Try all combinations of two sizes: axes that work only with equal sizes are equal."""
        units = [unit for unit in units_of(self._inputs) if len(set(self._two_sizes(unit))) > 1]
        if not 2 <= len(units) <= MAX_UNITS:
            return
        working = []
        for combination in itertools.product((0, 1), repeat=len(units)):
            sizes = {
                u: self._two_sizes(u)[which] for u, which in zip(units, combination, strict=True)
            }
            if self._run(self._with_sizes(sizes)) is not Outcome.FAILS:
                working.append(combination)
        groups: dict[tuple[int, ...], list[Unit]] = {}
        for at, unit in enumerate(units):
            in_each = tuple(combination[at] for combination in working)
            groups.setdefault(in_each, []).append(unit)
        for group in groups.values():
            if len(group) > 1 and len(working) > 1:
                self._make_equal(group)

    def _make_equal(self, units: Sequence[Unit]) -> None:
        labels = " and ".join(unit.label for unit in units)
        small, large = self._two_sizes(units[0])
        names = {unit.name for unit in units if unit.name is not None}
        bounds = {(unit.least, unit.most) for unit in units} - {(None, None)}
        if len(names) > 1 or len(bounds) > 1:
            self._notes.append(
                f"{labels} fail whenever their sizes differ, but are declared as different; if "
                "they are the same, give them one name"
            )
            return
        name = next(iter(names), None) or self._unused_name()
        least, most = next(iter(bounds), (None, None))
        is_spread = any(self._run(self._with_sizes({u: 1})) is Outcome.WORKS for u in units)
        for unit in units:
            self._inputs = change_axes(self._inputs, unit, name=name, least=least, most=most)
        note = (
            f"{labels} must be equal ({small} next to {large} fails): they are now called {name!r}"
        )
        if is_spread:
            note += f". 1 next to {small} runs; if that is intended, give them different names"
        self._notes.append(note)

    def _learn_size(self, at: int, end: End) -> None:
        unit = units_of(self._inputs)[at]
        small, large = sorted(self._two_sizes(unit))

        def attempt(size: int) -> Outcome:
            shapes = self._with_sizes({unit: size})
            # The mean or deviation of few rows may be NaN, and drawn numbers may be a mask of
            # zeros. A length may exceed the data.
            for numbers in ({}, self._filled(shapes, 0), self._filled(shapes, 1)):
                outcome = self._run(shapes, numbers, finite=end == "least")
                if outcome is not Outcome.FAILS:
                    break
            return outcome

        bound, inside = (unit.most, large) if end == "most" else (unit.least, small)
        if bound is not None:
            self._check(f"--input: size {bound} of {unit.label}", attempt, bound, inside)
            return
        ways = _up(large, LARGEST_SIZE) if end == "most" else _down_to_0(small)
        limit = self._trials.limit(attempt, inside, ways)
        if limit is None:
            if end == "most" and self._trials.stopped and self._trials.stopped[0] < FREE_MOST:
                size, why = self._trials.stopped
                self._notes.append(
                    f"{unit.label}: larger sizes than {size} were not tried, because it {why}; up "
                    f"to {FREE_MOST} are accepted: give the largest with --input, such as n<={size}"
                )
            return
        why = self._why(attempt, limit + (1 if end == "most" else -1))
        self._notes.append(f"{unit.label} is at {end} {limit}: {why}")
        least, most = (limit, unit.most) if end == "least" else (unit.least, limit)
        self._inputs = change_axes(self._inputs, unit, name=unit.name, least=least, most=most)

    def _learn_range(self, at: int) -> None:
        declaration, shapes = self._inputs[at], self._shapes[0]
        low, high = near_zero(declaration.spec)

        def attempt(number: int) -> Outcome:
            return self._run_filled(at, shapes, number)

        if declaration.range is not None:
            self._check_range(at, declaration.range, attempt, (low, high))
            return
        if attempt(low) is not Outcome.WORKS or attempt(high) is not Outcome.WORKS:
            return
        whole = np.iinfo(declaration.dtype)
        up = _up(high, min(LARGEST_NUMBER, int(whole.max)))
        down = [-number for number in _up(0, min(LARGEST_NUMBER, -int(whole.min)))]
        least = self._trials.limit(attempt, low, down)
        most = self._trials.limit(attempt, high, up)
        if self._trials.stopped:
            self._notes.append(
                f"the largest number of {declaration.name!r} was not looked for, because a forward "
                f"{self._trials.stopped[1]}; all are accepted: give it with --input, such as in "
                "0..30521"
            )
        if least is not None and not self._holds(at, least, -1):
            least = None
        unit = None
        if most is not None and not self._holds(at, most, 1):
            unit, most = self._unit_above(at, most), None
        inputs, subject, notes = self._inputs, f"the numbers of {declaration.name!r} are", []
        if least is not None:
            notes.append(f"{subject} at least {least}: {self._why(attempt, least - 1)}")
        if most is not None:
            notes.append(f"{subject} at most {most}: {self._why(attempt, most + 1)}")
        name = None
        if unit is not None:
            name, size = unit.name or self._unused_name(), self._two_sizes(unit)[0]
            inputs = change_axes(inputs, unit, name=name, least=unit.least, most=unit.most)
            naming = "" if unit.name else f", now called {name!r}"
            why = self._why(attempt, size)
            notes.append(f"{subject} less than {unit.label}{naming}: if that is {size}, {why}")
        new_input = replace(inputs[at], range=(least, most), below=name)
        inputs = (*inputs[:at], new_input, *inputs[at + 1 :])
        if notes and self._run_drawn(at, inputs) is Outcome.WORKS:
            self._inputs = inputs
            self._notes += notes

    def _try_zeros(self, at: int) -> None:
        """Try an item with nothing but zeros: a mean over a mask of zeros is NaN."""
        declaration, shapes = self._inputs[at], self._shapes[0]
        if near_zero(declaration.spec)[0] != 0:
            return
        zeros = {declaration.name: np.zeros((1, *shapes[at]), declaration.dtype)}
        outcome = self._run(shapes, zeros, finite=True)
        if outcome is not Outcome.FAILS or self._trials.failure != NOT_FINITE:
            return
        if self._run(shapes, finite=True) is Outcome.WORKS:
            axis = declaration.free[0].name or "SIZE"
            self._notes.append(
                f"the model returns NaN or infinity where all of {declaration.name!r} is 0: such "
                f"requests fail with 500. If it is a mask, --pad {axis}={declaration.name} lets "
                "the server reject them with 422"
            )

    def _check_range(self, at: int, bounds: Range, attempt: Try, inside: tuple[int, int]) -> None:
        """Check that the model works at both ends of a declared range.

        Raises:
            UsageError: if it does not.
        """
        name, option = self._inputs[at].name, self._inputs[at].range_option
        for bound, near in zip(bounds, inside, strict=True):
            if bound is not None and not self._is_taken(at, bound):
                self._check(f"{option}: {bound} in {name!r}", attempt, bound, near, at)
        below = next(
            (unit for unit in units_of(self._inputs) if unit.name == self._inputs[at].below), None
        )
        if self._inputs[at].below is None or below is None:
            if None not in bounds and self._run_drawn(at, self._inputs) is Outcome.FAILS:
                why = self._trials.failure
                if hint := self._index_hint(at):  # else it may be a range for one column of several
                    raise UsageError(
                        f"{option}: {bounds[0]}..{bounds[1]} is allowed in {name!r}, but the model "
                        f"fails on such numbers: {why}{hint}"
                    )
            return
        for size in dict.fromkeys(self._two_sizes(below)):
            shapes = self._with_sizes({below: size})
            if size and self._run_filled(at, shapes, size - 1) is Outcome.FAILS:
                raise UsageError(
                    f"--input: {size - 1} in {name!r} is allowed where {below.name!r} is {size}, "
                    f"but the model fails on it: {self._trials.failure}"
                )

    def _run_drawn(self, at: int, inputs: Sequence[DeclaredInput]) -> Outcome:
        """Run on numbers drawn from the whole range of an input, until one fails."""
        rng = np.random.default_rng(SEED)
        specs, name = [each.spec for each in inputs], inputs[at].name
        for shapes in self._shapes:
            numbers = draw(specs, TensorCodecSpec(), rng, 1, shapes)[name]
            outcome = self._run_among_others(shapes, {name: numbers})
            if outcome is not Outcome.WORKS:
                return outcome
        return Outcome.WORKS

    def _holds(self, at: int, limit: int, step: int) -> bool:
        """Whether a limit of an input's numbers is one for all sizes and places.

        Otherwise a number may be a length, or each column may have its own table.
        """
        for shapes in self._shapes:
            for number, outcome in ((limit, Outcome.WORKS), (limit + step, Outcome.FAILS)):
                if self._run_filled(at, shapes, number) is not outcome:
                    return False
        return not self._is_taken(at, limit + step)

    def _unit_above(self, at: int, limit: int) -> Unit | None:
        """Return the only free size that is always one more than the largest number; or None."""
        candidates = [unit for unit in self._ends(at) if self._two_sizes(unit)[0] == limit + 1]
        return candidates[0] if len(candidates) == 1 and not self._is_taken(at, limit + 1) else None

    def _ends(self, at: int) -> Iterator[Unit]:
        """Yield the free sizes that numbers everywhere in an input must be less than."""
        for unit in units_of(self._inputs):
            sizes = set(self._two_sizes(unit))
            if len(sizes) > 1 and all(
                self._run_filled(at, self._with_sizes({unit: size}), number) is outcome
                for size in sizes
                for number, outcome in ((size - 1, Outcome.WORKS), (size, Outcome.FAILS))
            ):
                yield unit

    def _is_taken(self, at: int, number: int) -> bool:
        """Whether a number is accepted at any place of an item, or there are too many to try."""
        name, shapes = self._inputs[at].name, self._shapes[0]
        sample = self._trials.sample(self._specs(), shapes)[name]
        for place in range(sample.size):
            numbers = sample.copy()
            numbers.reshape(-1)[place] = number
            if place >= MAX_PLACES or time.perf_counter() > self._ends_at:
                return True
            if self._run_among_others(shapes, {name: numbers}) is not Outcome.FAILS:
                return True
        return False

    def _index_hint(self, at: int) -> str:
        """What to write if the numbers of an input are indices into a free size."""
        units = tuple(self._ends(at))
        if len(units) != 1 or units[0].name is None:
            return ""
        return f"; if they are indices into {units[0].label}, write 0..<{units[0].name}"

    def _check(
        self, label: str, attempt: Try, value: int, inside: int, at: int | None = None
    ) -> None:
        """Check that a declared value works.

        Args:
            label: names the value in messages.
            attempt: tries a value.
            value: the declared one.
            inside: one that works.
            at: the input, if the value is one of its numbers.

        Raises:
            UsageError: if it does not; the message says which value does.
        """
        outcome = attempt(value)
        if outcome is Outcome.UNCLEAR:
            self._notes.append(f"{label} was not tried: it takes too much memory")
        if outcome is Outcome.FAILS:
            why = self._trials.failure
            edge = self._trials.edge(attempt, inside, value)
            hint = "" if edge is None else f"; it works as far as {edge}"
            hint += "" if at is None else self._index_hint(at)
            raise UsageError(f"{label} is allowed, but the model fails on it: {why}{hint}")

    def _why(self, attempt: Try, number: int) -> str:
        attempt(number)
        return f"{number} fails ({self._trials.failure})"

    def _run(
        self, shapes: Shapes, numbers: Mapping[str, Array] | None = None, *, finite: bool = False
    ) -> Outcome:
        return self._trials.run(self._specs(), shapes, numbers, finite=finite)

    def _run_filled(self, at: int, shapes: Shapes, number: int) -> Outcome:
        """Run with one number everywhere in an input, alone and among other items."""
        numbers = np.full((1, *shapes[at]), number, self._inputs[at].dtype)
        return self._run_among_others(shapes, {self._inputs[at].name: numbers})

    def _run_among_others(self, shapes: Shapes, numbers: Mapping[str, Array]) -> Outcome:
        return self._trials.run_among_others(self._specs(), shapes, numbers)

    def _specs(self) -> list[TensorSpec]:
        return [each.spec for each in self._inputs]

    def _unused_name(self) -> str:
        names = {unit.name for unit in units_of(self._inputs)}
        new = (*NAMES, *(f"n{number}" for number in range(MAX_UNITS)))
        return next(each for each in new if each not in names)

    def _filled(self, shapes: Shapes, which: Literal[0, 1]) -> dict[str, Array]:
        """Return integers and bools that are all 0 or all 1, or as near as their ranges allow."""
        return {
            spec.name: np.full((1, *shape), near_zero(spec)[which], spec.dtype)
            for spec, shape in zip(self._specs(), shapes, strict=True)
            if np.dtype(spec.dtype).kind in "biu"
        }

    def _two_sizes(self, unit: Unit) -> tuple[int, int]:
        number, axis = unit.places[0]
        return self._shapes[0][number][axis], self._shapes[-1][number][axis]

    def _with_sizes(self, sizes: Mapping[Unit, int]) -> Shapes:
        """Return the first shapes, with these sizes changed."""
        shapes = [list(shape) for shape in self._shapes[0]]
        for unit, size in sizes.items():
            for number, axis in unit.places:
                shapes[number][axis] = size
        return tuple(map(tuple, shapes))


def _up(above: int, most: int) -> list[int]:
    """Return the powers of two above a number, and then the largest number."""
    powers = [2**power for power in range(most.bit_length())]
    return sorted({number for number in (*powers, most) if above < number <= most})


def _down_to_0(below: int) -> list[int]:
    """Halve a number repeatedly, down to 0."""
    numbers = []
    while below > 0:
        below //= 2
        numbers.append(below)
    return numbers
