"""Time every form at every batch size, and plan which one runs which.

All that is needed stands in the artifact: tuning again on another machine works without the
Python model.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from export.errors import ExportError, UsageError, reason
from models.archive import ArchiveError
from models.definitions.definition import Progress
from models.forms import (
    Forward,
    WrongMachine,
    check_runs_here,
    intra_op_threads,
    kinds_here,
    load_form,
    processor_of,
    sequence_of,
)
from models.golden import golden_batches
from models.manifest import Manifest, Variant, forms_of, may_mix
from models.plan import (
    DevicePlan,
    Form,
    Plan,
    Precision,
    Rounds,
    Step,
    batch_sizes,
    choose,
    choose_one,
    summary,
    within_limits,
)
from models.processor import DeviceKind
from models.resources import usable_cores
from models.tensors import Arrays
from models.timing import time_interleaved

ROUNDS = 21
BUDGET_S = 3.0  # per batch size: a large model gets fewer rounds
MAX_BATCH = 64  # where nothing else is said

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How to measure.

    Attributes:
        max_batch: the largest batch that is timed; None: as in the plan there is, else MAX_BATCH.
        threads: intra-op threads on the CPU; None: as many as a server with one replica takes.
        precision: the plan's default; None: float32 where a variant has it, else the first one's.
    """

    max_batch: int | None = None
    threads: int | None = None
    precision: Precision | None = None


def measure(folder: Path, manifest: Manifest, options: TuneOptions, progress: Progress) -> Plan:
    """Time all forms on the golden examples, on every kind of device at hand.

    What the manifest's own plan says of kinds of device that are not at hand stays in the plan.

    Args:
        folder: where the variants' files lie.
        manifest: what they are.
        options: how to measure.
        progress: told after each batch size, and what cannot be timed here.

    Raises:
        UsageError: if the wanted precision is none of the variants'.
        ExportError: if no variant runs here, or one fails while it is timed.
    """
    precision = default_precision(manifest.variants, options.precision)
    measured = (_measure_on(kind, folder, manifest, options, progress) for kind in kinds_here())
    devices = [found for found in measured if found is not None]
    if not devices:
        raise ExportError("no variant runs on this machine, so there is nothing to measure")
    new = {device.processor.kind for device in devices}
    old = manifest.plan.devices if manifest.plan else ()
    kept = (device for device in old if device.processor.kind not in new)
    return Plan(precision=precision, devices=(*devices, *kept))


def default_precision(variants: Mapping[str, Variant], wanted: Precision | None) -> Precision:
    """What a plan is for where a server is not told otherwise.

    Raises:
        UsageError: if no variant has the wanted precision.
    """
    there = list(dict.fromkeys(variant.precision for variant in variants.values()))
    if wanted is not None and wanted not in there:
        raise UsageError(
            f"--plan-precision {wanted}: no variant has it; there are: {', '.join(there)}"
        )
    return wanted or ("float32" if "float32" in there else there[0])


def _measure_on(
    kind: DeviceKind, folder: Path, manifest: Manifest, options: TuneOptions, progress: Progress
) -> DevicePlan | None:
    device = torch.device(kind)
    threads = (options.threads or max(1, usable_cores() - 1)) if kind == "cpu" else 1
    with intra_op_threads(threads):
        sizes = batch_sizes(options.max_batch or _largest(manifest.plan, kind))
        forms = load_forms(folder, manifest, device, lambda why: progress(0, len(sizes), why))
        if not forms:
            return None
        rounds: dict[int, dict[Form, list[float]]] = {}
        slowest: dict[int, dict[Form, list[float]]] = {}
        for done, size in enumerate(sizes, start=1):
            taken = _time(forms, golden_batches(manifest, size), device, size)
            # Per round: the mean over the shapes, and the slowest of them.
            rounds[size] = {
                form: [statistics.fmean(shapes) for shapes in each] for form, each in taken.items()
            }
            slowest[size] = {form: [max(shapes) for shapes in each] for form, each in taken.items()}
            progress(done, len(sizes), f"{kind}, batch {size}")
    return DevicePlan(
        processor=processor_of(device, threads),
        torch_version=torch.__version__,
        times=tuple(
            summary(rounds, form, manifest.variants[form.variant].precision) for form in forms
        ),
        steps=plan_steps(manifest, rounds, slowest),
    )


def plan_steps(
    manifest: Manifest, rounds: Rounds, slowest: Rounds
) -> dict[Precision, tuple[Step, ...]]:
    """Which form runs which batch, per precision.

    A compiled form holds the GIL, so it is planned only where the slowest shape keeps the limit;
    and never where a dimension is free: a client's item may be larger than all golden ones.

    Args:
        manifest: of what was measured.
        rounds: a forward of the mean shape.
        slowest: a forward of the slowest shape; the same forms, sizes and rounds.
    """
    forms = list(dict.fromkeys(form for taken in rounds.values() for form in taken))
    variants = {form: manifest.variants[form.variant] for form in forms}
    holds_gil = [form for form in forms if variants[form].format == "aotinductor"]
    short = within_limits(slowest, holds_gil)
    fixed = all(spec.is_fixed for spec in manifest.inputs)
    allowed = {
        size: {
            form: times
            for form, times in taken.items()
            if form in short[size] and (fixed or form not in holds_gil)
        }
        for size, taken in rounds.items()
    }
    by_precision: dict[Precision, list[Form]] = {}
    for form in forms:
        by_precision.setdefault(variants[form].precision, []).append(form)
    made = {
        precision: (choose if may_mix(variants[form] for form in candidates) else choose_one)(
            allowed, candidates
        )
        for precision, candidates in by_precision.items()
    }
    return {precision: steps for precision, steps in made.items() if steps}


def _time(
    forms: Mapping[Form, Forward], batches: Sequence[Arrays], device: torch.device, size: int
) -> dict[Form, list[tuple[float, ...]]]:
    """Seconds of one forward: per form and round, one number per shape."""
    runs = {
        (form, shape): runner(call, batch, device)
        for form, call in forms.items()
        for shape, batch in enumerate(batches)
    }
    try:
        taken = time_interleaved(runs, ROUNDS, BUDGET_S)
    except Exception as error:  # what was never run at this size may fail in any way
        raise ExportError(f"a batch of {size} cannot be timed: {reason(error)}") from error
    return {
        form: list(zip(*(taken[form, shape] for shape in range(len(batches))), strict=True))
        for form in forms
    }


def _largest(plan: Plan | None, kind: DeviceKind) -> int:
    """The largest batch that was timed before: on this kind of device, else on any."""
    if plan is None:
        return MAX_BATCH
    own = plan.on(kind)
    devices = (own,) if own is not None else plan.devices
    sizes = (size for device in devices for times in device.times for size in times.batch_sizes)
    return max(sizes, default=MAX_BATCH)


def load_forms(
    folder: Path, manifest: Manifest, device: torch.device, tell: Tell
) -> dict[Form, Forward]:
    """Every form that runs on a device here, ready to be called.

    Args:
        folder: where the variants' files lie.
        manifest: what they are.
        device: where they are to run.
        tell: told why a form is not among them. Machine code may be for another machine, or this
            one forbids to run what is unpacked; a server does without it as well.

    Raises:
        ExportError: if a form that is no machine code cannot be loaded.
    """
    forms: dict[Form, Forward] = {}
    for form, variant in forms_of(manifest.variants).items():
        if form.optimized and device.type != "cpu":
            continue
        try:
            check_runs_here(variant, device, torch.__version__)
        except WrongMachine as error:
            tell(f"without {form}: {error}")
            continue
        try:
            data = [(folder / file).read_bytes() for file in variant.files]
            forms[form] = load_form(
                data, variant.format, manifest.inputs, device, optimized=form.optimized
            )
        except (OSError, RuntimeError, ArchiveError) as error:
            why = f"{form} cannot be loaded here: {reason(error)}"
            if variant.format != "aotinductor":
                raise ExportError(why) from error
            tell(f"{why}; it needs a temporary folder (TMPDIR) that files may be executed from")
    return forms


def runner(forward: Forward, batch: Arrays, device: torch.device) -> Callable[[], object]:
    """One forward of a batch, host memory to host memory."""
    tensors = [torch.from_numpy(np.array(array)) for array in batch.values()]

    def run() -> None:
        with torch.inference_mode():
            made = forward(*(tensor.to(device) for tensor in tensors))
            for output in sequence_of(made):
                output.cpu()

    return run
