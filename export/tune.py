"""Time every form at every batch size, and plan which one runs which.

All that is needed stands in the artifact: tuning again on another machine works without the
Python model.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from export.errors import ExportError, UsageError, reason
from models.archive import ArchiveError
from models.definitions.definition import Progress
from models.forms import Forward, WrongMachine, check_runs_here, kinds_here, load_form
from models.manifest import Manifest, Variant
from models.plan import (
    DevicePlan,
    Form,
    Plan,
    Precision,
    batch_sizes,
    choose,
    summary,
    time_interleaved,
    within_limits,
)
from models.processor import DeviceKind, Processor, this_cpu, usable_cores
from models.tensors import Arrays, stack

ROUNDS = 21
BUDGET_S = 3.0  # per batch size: a large model gets fewer rounds


@dataclass(frozen=True, slots=True)
class TuneOptions:
    """How to measure.

    Attributes:
        max_batch: the largest batch that is timed.
        threads: intra-op threads on the CPU; None: as many as a server with one replica takes.
        precision: the plan's default; None: float32 where a variant has it, else the first one's.
    """

    max_batch: int = 64
    threads: int | None = None
    precision: Precision | None = None


def measure(folder: Path, manifest: Manifest, options: TuneOptions, progress: Progress) -> Plan:
    """Time all forms on the golden examples, on every kind of device at hand.

    Args:
        folder: where the variants' files lie.
        manifest: what they are; a plan that it has already is not looked at.
        options: how to measure.
        progress: told after each batch size.

    Raises:
        UsageError: if the wanted precision is none of the variants'.
        ExportError: if no variant runs here, or one fails while it is timed.
    """
    precision = default_precision(manifest.variants, options.precision)
    measured = (_measure_on(kind, folder, manifest, options, progress) for kind in kinds_here())
    devices = [found for found in measured if found is not None]
    if not devices:
        raise ExportError("no variant runs on this machine, so there is nothing to measure")
    return Plan(precision=precision, devices=tuple(devices))


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


def forms_of(variants: Mapping[str, Variant]) -> dict[Form, Variant]:
    """Every form that was proved, in the order of the variants, plain before optimized."""
    forms = {}
    for name, variant in variants.items():
        forms[Form(variant=name)] = variant
        if variant.optimized is not None:
            forms[Form(variant=name, optimized=True)] = variant
    return forms


def _measure_on(
    kind: DeviceKind, folder: Path, manifest: Manifest, options: TuneOptions, progress: Progress
) -> DevicePlan | None:
    device = torch.device(kind)
    threads = (options.threads or max(1, usable_cores() - 1)) if kind == "cpu" else 1
    with _threads(threads):
        forms = load_forms(folder, manifest, device)
        if not forms:
            return None
        sizes = batch_sizes(options.max_batch)
        rounds: dict[int, dict[Form, list[float]]] = {}
        for done, size in enumerate(sizes, start=1):
            batches = golden_batches(manifest, size)
            runs = {form: runner(call, batches, device) for form, call in forms.items()}
            rounds[size] = _time(runs, len(batches), size)
            progress(done, len(sizes), f"{kind}, batch {size}")
    holds_gil = [form for form in forms if _format(manifest, form) == "aotinductor"]
    allowed = within_limits(rounds, holds_gil)
    by_precision: dict[Precision, list[Form]] = {}
    for form in forms:
        by_precision.setdefault(manifest.variants[form.variant].precision, []).append(form)
    return DevicePlan(
        processor=_processor(device, threads),
        torch_version=torch.__version__,
        times=tuple(
            summary(rounds, form, manifest.variants[form.variant].precision) for form in forms
        ),
        steps={
            precision: steps
            for precision, candidates in by_precision.items()
            if (steps := choose(allowed, candidates))
        },
    )


def _time(
    runs: Mapping[Form, Callable[[], object]], shapes: int, size: int
) -> dict[Form, list[float]]:
    """Seconds of one forward: the mean over the shapes, where there are several."""
    try:
        taken = time_interleaved(runs, ROUNDS, BUDGET_S)
    except Exception as error:  # what was never run at this size may fail in any way
        raise ExportError(f"a batch of {size} cannot be timed: {reason(error)}") from error
    return {form: [seconds / shapes for seconds in times] for form, times in taken.items()}


def golden_batches(manifest: Manifest, size: int) -> list[Arrays]:
    """One batch of each shape that the golden examples have, of different examples in turn."""
    by_shape: dict[tuple[tuple[int, ...], ...], list[Arrays]] = {}
    for example in manifest.golden:
        item = {spec.name: example.inputs[spec.name].array() for spec in manifest.inputs}
        by_shape.setdefault(tuple(array.shape for array in item.values()), []).append(item)
    return [
        stack([items[index % len(items)] for index in range(size)]) for items in by_shape.values()
    ]


def load_forms(folder: Path, manifest: Manifest, device: torch.device) -> dict[Form, Forward]:
    """Every form that runs on a device here, ready to be called.

    Raises:
        ExportError: if one should, and torch cannot load it.
    """
    forms: dict[Form, Forward] = {}
    for form, variant in forms_of(manifest.variants).items():
        if form.optimized and device.type != "cpu":
            continue
        try:
            check_runs_here(variant, device, torch.__version__)
        except WrongMachine:
            continue
        try:
            data = (folder / variant.file).read_bytes()
            forms[form] = load_form(
                data, variant.format, manifest.inputs, device, optimized=form.optimized
            )
        except (OSError, RuntimeError, ArchiveError) as error:
            raise ExportError(f"{form} cannot be loaded here: {reason(error)}") from error
    return forms


def runner(
    forward: Forward, batches: Sequence[Arrays], device: torch.device
) -> Callable[[], object]:
    """One forward per batch, host memory to host memory."""
    prepared = [[torch.from_numpy(np.array(a)) for a in batch.values()] for batch in batches]

    def run() -> None:
        with torch.inference_mode():
            for tensors in prepared:
                made = forward(*(tensor.to(device) for tensor in tensors))
                for output in made if isinstance(made, tuple | list) else (made,):
                    output.cpu()

    return run


def _format(manifest: Manifest, form: Form) -> str:
    return manifest.variants[form.variant].format


def _processor(device: torch.device, threads: int) -> Processor:
    if device.type == "cpu":
        return this_cpu(threads)
    return Processor(kind="cuda", name=torch.cuda.get_device_name(device), threads=1)


@contextlib.contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
