"""The report's sections on the plan: the chosen forms, and the times behind the choice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from export.reports.sections import Column, Section
from export.timing.timings import PerItem, Standing, best_single, plan_line, standings, three_digits
from models.choices import Precision
from models.manifest import LARGE_BYTES, Manifest, Variant
from models.plan import DevicePlan, Form, Plan

CHOSEN = "*"  # marks the plan's form in a table of times
COMPARED = ("plan / fastest", "plan / best single")


def plan_sections(manifest: Manifest) -> Iterator[Section]:
    """Yield per device the plan with its plot, then a table of times per precision."""
    if manifest.plan is None:
        first = next(iter(manifest.variants))
        yield Section("Plan", (f"No form was timed: {first} runs batches of every size.",))
        return
    for device in manifest.plan.devices:
        yield _plan(manifest, manifest.plan, device)
        for precision in device.steps:
            yield _times(device, precision, manifest)


def load_lines(device: DevicePlan, artifact: str, program: str = "torchlane") -> Iterator[str]:
    """Yield notes and advice on a plan that was measured on a busy machine.

    Args:
        device: its measurements.
        artifact: its folder, as a user would write it.
        program: the command `torchlane`, as a user would write it.
    """
    if device.kept_waiting is None and not device.unsettled:
        return
    share = "" if device.kept_waiting is None else f" for {device.kept_waiting:.0%} of the time"
    yield (
        f"Measured under load: other work kept the forwards from running{share}. Disturbed samples "
        "were repeated."
    )
    if device.unsettled:
        sizes = ", ".join(map(str, device.unsettled))
        yield (
            f"The machine was too busy to tell which form is the fastest at batch {sizes}; there a "
            "form replaces the preferred one only if it was clearly faster."
        )
    yield f"To measure again when the machine is idle: {program} tune {artifact}"


def _plan(manifest: Manifest, plan: Plan, device: DevicePlan) -> Section:
    rows = (
        (precision + (", the default" if precision == plan.precision else ""), plan_line(steps))
        for precision, steps in device.steps.items()
    )
    lines = [
        f"Measured on {device.processor} with torch {device.torch_version}.",
        "A server follows one precision for all batch sizes; larger batches run as the largest.",
    ]
    largest = max((size for times in device.times for size in times.batch_sizes), default=0)
    if any(steps[-1].up_to > largest > 0 for steps in device.steps.values()):
        lines.append(
            f"Batches of more than {largest} were not timed: they are slow and run in the same "
            "form, because every form's time grew in proportion to the batch, or one size would "
            "take minutes."
        )
    if device.layout is not None:
        rates = zip(device.layout.layouts, device.layout.items_per_s, strict=True)
        text = ", ".join(f"{layout}: {three_digits(rate)}" for layout, rate in rates)
        lines.append(
            f"CPU layout (replicas x threads): {device.layout.chosen}. Items/s in batches of "
            f"{device.layout.batch_size}, next to a busy event loop: {text}."
        )
    lines += load_lines(device, f"artifacts/{manifest.model}/{manifest.version}")
    if plan.precision not in device.steps:
        lines.append(f"The default precision, {plan.precision}, has no form on this device.")
    return Section(
        title=f"Plan on {device.processor.kind}",
        lines=tuple(lines),
        columns=(Column("precision"), Column("which form runs which batch sizes")),
        rows=tuple(rows),
        device=device,
    )


def _times(device: DevicePlan, precision: Precision, manifest: Manifest) -> Section:
    results = standings(device, precision)
    variants = [each for each in manifest.variants.values() if each.precision == precision]
    forms = [times.form for times in device.times if times.precision == precision]
    single = best_single(results)
    columns = [Column("batch", numeric=True)]
    columns += [Column(str(form), numeric=True) for form in forms]
    if len(forms) > 1:
        columns += [Column(title, numeric=True) for title in COMPARED]
    return Section(
        title=f"Time per item, {precision} on {device.processor.kind}",
        lines=tuple(_explain(results, forms, single, _why_one(manifest, variants))),
        columns=tuple(columns),
        rows=tuple(_row(each, forms, single) for each in results),
    )


def _explain(
    results: Sequence[Standing], forms: Sequence[Form], single: Form | None, why_one: str
) -> Iterator[str]:
    if not results:
        yield "The plan's form was not timed."
        return
    yield (
        f"Microseconds per item: the median, and below it the middle half of the rounds; {CHOSEN} "
        "is the plan's form."
    )
    if len(forms) == 1:
        yield f"{forms[0]} is the only form of this precision."
        return
    if single is not None:
        yield f"Best single form, by the geometric mean over the sizes: {single}."
    if why_one:
        yield f"One form runs all sizes, the best overall: {why_one}."
    beyond = [str(each.size) for each in results if not each.within_noise]
    if beyond:
        yield f"Slower than the fastest form beyond the noise at batch {', '.join(beyond)}."
    else:
        yield "At no measured batch size is the plan slower than the fastest form beyond the noise."
    winners = {each.plan_form for each in results}
    if len(winners) == 1:
        yield from _one_wins(results, winners.pop(), mixable=not why_one)


def _why_one(manifest: Manifest, variants: Sequence[Variant]) -> str:
    """Explain why a plan must not use several forms of these variants; empty if it may."""
    if manifest.may_mix(variants):
        return ""
    if any(manifest.is_large(each) for each in variants):
        return f"each form has its own copy of more than {LARGE_BYTES >> 20} MiB of weights"
    return "the forms differ by more than float32 does, and an answer must not depend on the load"


def _one_wins(results: Sequence[Standing], winner: Form, *, mixable: bool) -> Iterator[str]:
    """Explain with figures why the plan has a single form."""
    if mixable and all(each.within_noise for each in results):
        yield f"{winner} runs at every size: no other form wins by more than the noise at any."
    for each in results:
        own, runner_up = each.times[winner].median_us, each.runner_up
        if runner_up is None:
            yield f"Batch {each.size}: {three_digits(own)} us; no other form may run."
            continue
        other = each.times[runner_up].median_us
        yield (
            f"Batch {each.size}: {three_digits(own)} us; runner-up {runner_up}: "
            f"{three_digits(other)} us, {other / own:.2f}x."
        )


def _row(each: Standing, forms: Sequence[Form], single: Form | None) -> tuple[str, ...]:
    cells = [str(each.size)]
    for form in forms:
        mark = CHOSEN if form == each.plan_form else ""
        cells.append(_time(each.times.get(form), mark))
    if len(forms) > 1:
        noise = "" if each.within_noise else "\nbeyond noise"
        cells.append(f"{each.ratio(each.fastest):.2f}{noise}")
        cells.append("-" if single is None else f"{each.ratio(single):.2f}")
    return tuple(cells)


def _time(time: PerItem | None, mark: str) -> str:
    if time is None:
        return "-"
    low, high = three_digits(time.low_us), three_digits(time.high_us)
    return f"{three_digits(time.median_us)}{mark}\n{low}-{high}"
