"""The fastest form of a model at each batch size: measured, chosen, written down.

A form is a variant as in its file, or that variant after `optimize_for_inference`, which
cannot be saved and is applied at load. Export, and a server on another processor, measure; both
choose with the code in this file.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from pydantic import Field, model_validator

from models.choices import Precision
from models.cpu_layout import FORWARD_S, MeasuredLayout
from models.parts import Part
from models.processor import DeviceKind, Processor
from models.tensors import Name
from models.timing import lasts_s

MIN_GAIN = 0.03  # a form replaces another only if it takes less time by at least this share
THIRDS, ROUNDS_OF_A_THIRD = 3, 4  # minimum to compare the lower quartiles of two forms


class Form(Part):
    """One executable form of a model."""

    variant: Name
    optimized: bool = Field(default=False, description="optimize_for_inference applied at load")

    def __str__(self) -> str:
        return f"{self.variant}, optimized at load" if self.optimized else self.variant


class FormTimes(Part):
    """Time of a forward of one form, per batch (not per item): quartiles over the rounds."""

    form: Form
    precision: Precision
    batch_sizes: tuple[int, ...] = Field(min_length=1)
    median_us: tuple[float, ...]
    low_us: tuple[float, ...]
    high_us: tuple[float, ...]

    @model_validator(mode="after")
    def _one_time_per_size(self) -> FormTimes:
        for times in (self.median_us, self.low_us, self.high_us):
            if len(times) != len(self.batch_sizes):
                raise ValueError(f"{self.form}: one time per batch size is needed")
        return self


class Step(Part):
    """The form for batches above the previous step and up to `up_to` items."""

    up_to: int = Field(ge=1)
    form: Form


class DevicePlan(Part):
    """Measurements on one processor, and the fastest form by precision and batch size."""

    processor: Processor
    torch_version: str
    times: tuple[FormTimes, ...]
    steps: dict[Precision, tuple[Step, ...]]
    kept_waiting: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="share of time in which other work kept the measuring process from running; "
        "none: almost none",
    )
    unsettled: tuple[int, ...] = Field(
        default=(), description="batch sizes at which almost all samples were disturbed"
    )
    layout: MeasuredLayout | None = Field(
        default=None, description="of CPU replicas that run the plan's default precision"
    )

    @model_validator(mode="after")
    def _ascending(self) -> DevicePlan:
        for precision, steps in self.steps.items():
            sizes = [step.up_to for step in steps]
            if not sizes or sizes != sorted(set(sizes)):
                raise ValueError(f"steps of {precision} must ascend, got up_to {sizes}")
        return self

    def quick_batch(self, most: int) -> int:
        """Return the largest batch size up to `most` that some form ran in FORWARD_S; else 1."""
        quick = (
            size
            for times in self.times
            for size, median_us in zip(times.batch_sizes, times.median_us, strict=True)
            if size <= most and median_us <= FORWARD_S * 1e6
        )
        return max(quick, default=1)


class Plan(Part):
    """The form for each batch size, per kind of device.

    A server uses one precision for all batch sizes, by default `precision`, so that an answer does
    not depend on the server's load.
    """

    precision: Precision
    devices: tuple[DevicePlan, ...]

    def on(self, kind: DeviceKind) -> DevicePlan | None:
        """Return the measurements on this kind of device."""
        return next((each for each in self.devices if each.processor.kind == kind), None)


# Batch size -> form -> seconds of one forward, one number per round, rounds in the same order.
Rounds: TypeAlias = Mapping[int, Mapping[Form, Sequence[float]]]


def form_at(steps: Sequence[Step], size: int) -> Form:
    """Return the form for a batch of `size`; beyond the measured sizes, that of the last step."""
    for step in steps:
        if size <= step.up_to:
            return step.form
    return steps[-1].form


def choose(
    rounds: Rounds, candidates: Sequence[Form], unsettled: Collection[int] = ()
) -> tuple[Step, ...]:
    """Choose the fastest candidate by batch size; keep a form if another wins only by noise.

    Args:
        rounds: the measurements.
        candidates: in order of preference: the first is replaced only by a faster one.
        unsettled: sizes at which the machine was too busy: there only a clearly faster form
            replaces another (`always` of `is_faster`).

    Returns:
        ascending steps, as few as possible; empty if no candidate was measured.
    """
    steps: list[Step] = []
    current: Form | None = None
    for size in sorted(rounds):
        times_by_form = {form: rounds[size][form] for form in candidates if form in rounds[size]}
        if not times_by_form:
            continue
        if current not in times_by_form:
            current = next(iter(times_by_form))
        while better := _better(times_by_form, current, always=size in unsettled):
            current = better
        if steps and steps[-1].form == current:
            steps.pop()
        steps.append(Step(up_to=size, form=current))
    return tuple(steps)


def extend_steps(steps: tuple[Step, ...], largest: int) -> tuple[Step, ...]:
    """Extend the last step up to `largest`, for sizes that need no measurement."""
    return (*steps[:-1], Step(up_to=max(largest, steps[-1].up_to), form=steps[-1].form))


def choose_one(
    rounds: Rounds, candidates: Sequence[Form], unsettled: Collection[int] = ()
) -> tuple[Step, ...]:
    """Choose the best form overall for every size, if the forms' answers differ.

    Args:
        rounds: the measurements.
        candidates: in order of preference: the first is replaced only by a faster one.
        unsettled: sizes at which the machine was too busy: there it must be clearly faster.

    Returns:
        one step, up to the largest size; empty if no candidate was measured at every size.
    """
    sums = {
        form: statistics.fmean(math.log(statistics.median(rounds[size][form])) for size in rounds)
        for form in candidates
        if rounds and all(form in times_by_form for times_by_form in rounds.values())
    }
    if not sums:
        return ()
    first, best = next(iter(sums)), min(sums, key=lambda form: sums[form])
    wins = sums[best] - sums[first] < math.log(1 - MIN_GAIN) and all(
        is_faster(rounds[size][best], rounds[size][first], always=True) for size in unsettled
    )
    return (Step(up_to=max(rounds), form=best if wins else first),)


def _better(
    times_by_form: Mapping[Form, Sequence[float]], current: Form, *, always: bool
) -> Form | None:
    """Return the fastest form that beats the current one; the fastest may be too noisy to do so."""
    limit = statistics.median(times_by_form[current])
    medians = {
        form: median
        for form, times in times_by_form.items()
        if (median := statistics.median(times)) < limit
        and is_faster(times, times_by_form[current], always=always)
    }
    return min(medians, key=lambda form: medians[form], default=None)


def is_faster(times: Sequence[float], others: Sequence[float], *, always: bool = False) -> bool:
    """Whether a form beats another by more than the noise.

    It does if the median ratio of their times shows the gain and it wins three quarters of the
    rounds. On a busy machine each form has its own noise, which only adds; then its lower quartile
    must show the gain and be lower in each third of enough rounds.

    Args:
        times: of the form, one per round.
        others: of the other form, in the same rounds.
        always: whether it must win all rounds; or, with enough rounds, three quarters must be
            faster than three quarters of the other's, so that one hiccup does not decide.
    """
    ratios = sorted(own / other for own, other in zip(times, others, strict=True))
    median = statistics.median(ratios)
    enough = len(times) >= THIRDS * ROUNDS_OF_A_THIRD
    if always:
        return median < 1 - MIN_GAIN and (ratios[-1] < 1 or (enough and _apart(times, others)))
    if median < 1 - MIN_GAIN and ratios[3 * len(ratios) // 4] < 1:
        return True
    return (
        median < 1
        and enough
        and lasts_s(times) < (1 - MIN_GAIN) * lasts_s(others)
        and all(
            lasts_s(times[third::THIRDS]) < lasts_s(others[third::THIRDS])
            for third in range(THIRDS)
        )
    )


def _apart(times: Sequence[float], others: Sequence[float]) -> bool:
    """Whether the upper quartile of `times` is below the lower quartile of `others`."""
    return sorted(times)[3 * len(times) // 4] < sorted(others)[len(others) // 4]


def summary(rounds: Rounds, form: Form, precision: Precision) -> FormTimes:
    """Return one form's times in microseconds, with the spread of the middle half of the rounds."""
    times_by_size = {
        size: sorted(times_by_form[form])
        for size, times_by_form in sorted(rounds.items())
        if form in times_by_form
    }

    def at(share: float) -> tuple[float, ...]:
        return tuple(
            round(times[round(share * (len(times) - 1))] * 1e6, 2)
            for times in times_by_size.values()
        )

    return FormTimes(
        form=form,
        precision=precision,
        batch_sizes=tuple(times_by_size),
        median_us=tuple(round(statistics.median(t) * 1e6, 2) for t in times_by_size.values()),
        low_us=at(0.25),
        high_us=at(0.75),
    )


def same_release(one: str, other: str) -> bool:
    """Whether two torch versions are equal except for their build, like 2.13.0+cpu and 2.13.0."""
    return one.partition("+")[0] == other.partition("+")[0]


def batch_sizes(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4 ... and `largest`: the sizes to measure, and to warm in a server."""
    sizes = [1]
    while sizes[-1] < largest:
        sizes.append(min(2 * sizes[-1], largest))
    return tuple(sizes)
