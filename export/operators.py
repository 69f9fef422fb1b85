"""Record the forwards of an artifact's forms, and list the operators that take the most time."""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from export.errors import ExportError, UsageError, reason
from export.pipeline import open_artifact
from export.progress import say
from export.timing import tune
from export.timing.contest import runner
from export.timing.profiling import FORWARDS, WHOLE, compress, record, trace_of
from models.golden import golden_batches
from models.manifest import Manifest
from models.padding import padding_of
from models.plan import Form, form_at
from models.runtimes.forms import Forward, intra_op_threads, kinds_here, processor_of
from models.system.resources import serving_threads
from models.tensors import Arrays
from models.timing import seconds_of

# Environment variables that change how torch computes.
VARIABLES = (
    *("OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES", "OMP_WAIT_POLICY"),
    *("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_BLOCKTIME", "MKL_NUM_THREADS", "LD_PRELOAD"),
    *("ONEDNN_MAX_CPU_ISA", "ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES"),
    *("CUDA_LAUNCH_BLOCKING", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
)


@dataclass(frozen=True, slots=True)
class Operator:
    """The cost of an operator on inputs of one shape, per forward.

    Attributes:
        cpu_us: on the CPU, without the operators that it calls.
        device_us: the same on the device.
    """

    name: str
    shapes: str
    calls: float
    cpu_us: float
    device_us: float


def run(args: argparse.Namespace, console: Console) -> None:
    """Record and print.

    Raises:
        UsageError: if the options do not fit the artifact or this machine.
        ExportError: if a form cannot be loaded or run, or the trace cannot be written.
    """
    manifest = open_artifact(args.folder)
    if args.device not in kinds_here():
        raise UsageError(f"--device {args.device}: this machine has none")
    device = torch.device(args.device)
    _check_variants(args.variant, manifest)
    batches = {size: _batch(manifest, size, args.length) for size in args.batch_size}
    threads = (args.threads or serving_threads()) if device.type == "cpu" else 1
    trace: dict[str, Any] = {}
    with intra_op_threads(threads):
        say(console, f"{manifest.model} version {manifest.version}", style="bold")
        for line in environment(device, threads):
            say(console, line)

        def tell(why: str) -> None:
            say(console, f"warning: {why}")

        forms = _load(args, manifest, device, tell)
        for size, batch in batches.items():
            for form in _at(args, manifest, device, size, forms):
                try:
                    events = _show(console, form, runner(forms[form], batch, device), batch, args)
                except Exception as error:  # a form may fail in any way
                    why = f"{form} cannot run a batch of {size}: {reason(error)}"
                    raise ExportError(why) from error
                _join(trace, events)
    if args.trace is not None:
        _write(args.trace, trace)
        say(console, f"\ntrace: {args.trace}; open it at ui.perfetto.dev or chrome://tracing")


def environment(device: torch.device, threads: int) -> Iterator[str]:
    """Describe what determines torch's speed on this machine, in lines."""
    yield f"{processor_of(device, threads)}, {os.cpu_count()} cores"
    libraries = {
        "oneDNN": torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        "MKL": torch.backends.mkl.is_available(),  # type: ignore[no-untyped-call]
        f"CUDA {torch.version.cuda}": torch.version.cuda is not None,
    }
    there = [name for name, is_there in libraries.items() if is_there]
    yield (
        f"torch {torch.__version__} with {', '.join(there) or 'no math library'}, "
        f"{torch.backends.cpu.get_cpu_capability()}; {torch.get_num_threads()} intra-op and "
        f"{torch.get_num_interop_threads()} inter-op threads"
    )
    variables = [
        f"{name}={value}" for name, value in sorted(os.environ.items()) if name in VARIABLES
    ]
    if variables:
        yield f"environment: {', '.join(variables)}"


def operators(profile: torch.profiler.profile) -> list[Operator]:
    """Return the operators of recorded forwards, those that take the most time first.

    Time outside of operators, such as in an interpreter or compiled kernels, is in the entry of the
    whole forward.
    """
    costs = [
        Operator(
            name=each.key,
            shapes="" if each.key == WHOLE else _shapes(each.input_shapes),
            calls=each.count / FORWARDS,
            cpu_us=each.self_cpu_time_total / FORWARDS,
            device_us=each.self_device_time_total / FORWARDS,
        )
        for each in profile.key_averages(group_by_input_shape=True)
    ]
    return sorted(costs, key=lambda each: -max(each.cpu_us, each.device_us))


def _check_variants(names: tuple[str, ...] | None, manifest: Manifest) -> None:
    unknown = set(names or ()) - set(manifest.variants)
    if unknown:
        raise UsageError(
            f"--variant {', '.join(sorted(unknown))}: there are: {', '.join(manifest.variants)}"
        )


def _load(
    args: argparse.Namespace, manifest: Manifest, device: torch.device, tell: tune.Tell
) -> dict[Form, Forward]:
    """Load the forms of the wanted variants, or all that a plan may name."""
    variants = {
        name: variant
        for name, variant in manifest.variants.items()
        if args.variant is None or name in args.variant
    }
    forms = tune.load_forms(
        args.folder, manifest.model_copy(update={"variants": variants}), device, tell
    )
    if not forms:
        raise ExportError(f"none of {', '.join(variants)} runs on {device} here")
    return forms


def _at(
    args: argparse.Namespace,
    manifest: Manifest,
    device: torch.device,
    size: int,
    forms: dict[Form, Forward],
) -> list[Form]:
    """Return the forms to record at a batch size."""
    if args.variant is not None:
        return list(forms)
    device_plan = (
        manifest.plan.on("cuda" if device.type == "cuda" else "cpu") if manifest.plan else None
    )
    steps = (
        device_plan.steps.get(manifest.plan.precision) if device_plan and manifest.plan else None
    )
    if steps and (form := form_at(steps, size)) in forms:
        return [form]
    return [next(iter(forms))]


def _batch(manifest: Manifest, size: int, length: int | None) -> Arrays:
    """Batch golden examples: the longest ones, or repeated or cut to a length."""
    batch = max(
        golden_batches(manifest, size), key=lambda each: sum(a.nbytes for a in each.values())
    )
    if length is None:
        return batch
    padding = padding_of(manifest.inputs, manifest.outputs)
    if padding is None:
        raise UsageError(f"--length: the items of {manifest.model} have no length")
    dimension = padding.dimension
    if not dimension.least <= length <= dimension.most:
        raise UsageError(
            f"--length {length}: {dimension.name} is {dimension.least} to {dimension.most}"
        )
    arrays = {}
    for spec in manifest.inputs:
        array = batch[spec.name]
        for at, axis in enumerate(spec.axes, start=1):
            if axis.name == dimension.name:
                array = np.take(array, np.arange(length) % array.shape[at], axis=at)
        arrays[spec.name] = np.ascontiguousarray(array)
    return arrays


def _show(
    console: Console,
    form: Form,
    forward: Callable[[], object],
    batch: Arrays,
    args: argparse.Namespace,
) -> dict[str, Any]:
    """Record a form, print its table, and return the trace."""
    profile = record(forward, shapes=True)
    costs = operators(profile)
    shapes = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in batch.items())
    size = len(next(iter(batch.values())))
    say(console, f"\n{form}, batch of {size}: {shapes}", style="bold")
    inside = sum(each.cpu_us for each in costs if each.name != WHOLE)
    total = sum(each.cpu_us for each in costs)
    seconds = statistics.median(seconds_of(forward) for _ in range(FORWARDS))
    on_device = sum(each.device_us for each in costs)
    say(
        console,
        f"{seconds * 1e3:.3f} ms a forward (median of {FORWARDS}, not recorded); "
        f"recorded: {total / 1e3:.3f} ms on the CPU, {inside / max(total, 1e-9):.0%} in operators",
    )
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    columns = ["calls", "self CPU us", "share", *(["self device us"] if on_device else [])]
    table.add_column("operator", overflow="fold")
    for title in columns:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("input shapes", overflow="fold")
    for each in costs[: args.rows]:
        name = "outside of operators" if each.name == WHOLE else each.name
        numbers = [f"{each.calls:g}", f"{each.cpu_us:.1f}", f"{each.cpu_us / max(total, 1e-9):.1%}"]
        numbers += [f"{each.device_us:.1f}"] if on_device else []
        table.add_row(escape(name), *numbers, escape(each.shapes))
    console.print(table)
    if len(costs) > args.rows:
        say(console, f"and {len(costs) - args.rows} more; --rows shows them")
    return _name_ranges(trace_of(profile), f"{form}, batch of {size}")


def _shapes(shapes: Any) -> str:
    """Format the shapes of the tensors among an operator's inputs."""
    return " ".join(str(list(each)).replace(" ", "") for each in shapes or () if each)


def _name_ranges(trace: dict[str, Any], name: str) -> dict[str, Any]:
    """Name the trace's ranges of whole forwards after what ran."""
    for event in trace["traceEvents"]:
        if event.get("name") == WHOLE:
            event["name"] = name
    return trace


def _join(trace: dict[str, Any], more: dict[str, Any]) -> None:
    """Add the events of another recording; in one process all have the same time base."""
    events = trace.get("traceEvents", [])
    trace.update(more)
    trace["traceEvents"] = [*events, *more["traceEvents"]]


def _write(file: Path, trace: dict[str, Any]) -> None:
    data = compress(trace) if file.suffix == ".gz" else json.dumps(trace).encode()
    try:
        file.write_bytes(data)
    except OSError as error:
        raise ExportError(f"--trace {file}: {error.strerror or error}") from error
