"""Evaluates the times of a plan: the fastest form per batch size, and what the plan gains."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from models.choices import Precision
from models.plan import MIN_GAIN, DevicePlan, Form, FormTimes, Step, form_at


@dataclass(frozen=True, slots=True)
class PerItem:
    """Microseconds per item: the median and the quartiles of the rounds."""

    median_us: float
    low_us: float
    high_us: float


@dataclass(frozen=True, slots=True)
class Standing:
    """The measurements at one batch size of one precision.

    Attributes:
        times: every form that was measured at this size.
        plan_form: the plan's form.
    """

    size: int
    times: dict[Form, PerItem]
    plan_form: Form

    @property
    def fastest(self) -> Form:
        """The fastest form, by the median; the plan's form on a tie."""
        return min(self.times, key=lambda form: (self._median(form), form != self.plan_form))

    @property
    def runner_up(self) -> Form | None:
        """The fastest form other than the plan's; None if there is none."""
        others = [form for form in self.times if form != self.plan_form]
        return min(others, key=self._median, default=None)

    @property
    def within_noise(self) -> bool:
        """Whether the plan's form is as fast as the fastest, within the noise."""
        fastest, own = self.times[self.fastest], self.times[self.plan_form]
        is_slower = fastest.median_us < (1 - MIN_GAIN) * own.median_us
        return not is_slower or own.low_us <= fastest.high_us

    def ratio(self, form: Form) -> float:
        """The time of the plan's form divided by that of another one."""
        return self._median(self.plan_form) / self._median(form)

    def _median(self, form: Form) -> float:
        return self.times[form].median_us


def standings(device: DevicePlan, precision: Precision) -> tuple[Standing, ...]:
    """Return one standing per batch size at which the plan's form was measured.

    Args:
        device: the measured times and the plan.
        precision: one that has steps.
    """
    form_times = [times for times in device.times if times.precision == precision]
    steps = device.steps[precision]
    sizes = sorted({size for times in form_times for size in times.batch_sizes})
    entries = []
    for size in sizes:
        times = {each.form: per_item(each)[size] for each in form_times if size in each.batch_sizes}
        plan_form = form_at(steps, size)
        if plan_form in times:
            entries.append(Standing(size, times, plan_form))
    return tuple(entries)


def per_item(times: FormTimes) -> dict[int, PerItem]:
    """Map each batch size to its time per item."""
    rows = zip(times.batch_sizes, times.median_us, times.low_us, times.high_us, strict=True)
    return {
        size: PerItem(median / size, low / size, high / size) for size, median, low, high in rows
    }


def best_single(entries: Sequence[Standing]) -> Form | None:
    """Return the best form for all sizes, by the geometric mean of its times.

    Returns None if no form was measured at every size.
    """
    if not entries:
        return None
    everywhere = [form for form in entries[0].times if all(form in each.times for each in entries)]

    def mean(form: Form) -> float:
        return sum(math.log(max(each.times[form].median_us, 1e-9)) for each in entries)

    return min(everywhere, key=mean, default=None)


def plan_line(steps: Sequence[Step]) -> str:
    """Format steps in words: `1..4 compiled; 5..64 script, optimized at load`."""
    parts, first = [], 1
    for step in steps:
        sizes = str(first) if step.up_to == first else f"{first}..{step.up_to}"
        parts.append(f"{sizes} {step.form}")
        first = step.up_to + 1
    return "; ".join(parts)


def three_digits(value: float) -> str:
    """Format with three significant digits: 4.41, 18.5, 322, 1,360."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
