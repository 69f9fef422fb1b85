"""`python -m loadtests.bench.forward FOLDER`: forwards by the plan beside the plain frozen script.

One thread, no HTTP, no batcher: host arrays in, host arrays out, by the code that a server runs.
Prints one JSON object. Run by `python -m loadtests.bench` in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from models.forms import Forward, WrongMachine, check_runs_here, load_form, named_outputs
from models.golden import golden_batches
from models.manifest import MANIFEST_FILE, Manifest
from models.plan import Form, Step, form_at
from models.processor import this_cpu
from models.tensors import Arrays
from models.timing import time_interleaved

SIZES = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 31
PLAIN = "plain script"
Run = Callable[[Arrays], object]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench.forward")
    parser.add_argument("folder", type=Path, help="an artifact")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args(arguments)
    manifest = Manifest.model_validate_json((given.folder / MANIFEST_FILE).read_bytes())
    torch.set_num_threads(1)
    try:
        measured = measure(given.folder, manifest, given.rounds)
    except (WrongMachine, ValueError) as error:
        sys.stderr.write(f"forward: {error}\n")
        return 1
    sys.stdout.write(json.dumps(measured) + "\n")
    return 0


def measure(folder: Path, manifest: Manifest, rounds: int) -> dict[str, Any]:
    """Microseconds per item of every precision's plan and of the plain script, by batch size.

    Every round times all of them, so a ratio is of neighbours: the median over the rounds.

    Raises:
        ValueError: if the artifact has no plan for one thread of this CPU, or no script to compare
            with; the message says what to do.
        WrongMachine: if a planned form must not run here.
    """
    device_plan = manifest.plan.on("cpu") if manifest.plan else None
    if device_plan is None:
        raise ValueError(f"{folder} has no plan for the CPU; run `make export` anew")
    plain = next((name for name in ("script", "trace") if name in manifest.variants), None)
    if plain is None:
        raise ValueError(f"{folder} has no TorchScript variant in float32 to compare with")
    here = this_cpu(threads=1)
    if device_plan.processor != here:
        raise ValueError(
            f"the plan of {folder} was measured on {device_plan.processor}, here is {here}; run "
            f"`python -m export tune {folder} --threads 1`"
        )
    runs: dict[str, Run] = {PLAIN: _run(_load(folder, manifest, Form(variant=plain)), manifest)}
    for precision, steps in device_plan.steps.items():
        runs[f"{precision} plan"] = _planned(folder, manifest, steps)
    result: dict[str, Any] = {"processor": str(here), "sizes": {}}
    for size in SIZES:
        batch = golden_batches(manifest, size)[0]  # of the first example's shape
        taken = time_interleaved({name: _bound(run, batch) for name, run in runs.items()}, rounds)
        result["sizes"][size] = {
            name: {
                "us_per_item": statistics.median(times) * 1e6 / size,
                "ratio": statistics.median(
                    own / other for own, other in zip(times, taken[PLAIN], strict=True)
                ),
            }
            for name, times in taken.items()
        }
    return result


def _planned(folder: Path, manifest: Manifest, steps: Sequence[Step]) -> Run:
    forms = {step.form for step in steps}
    runs = {form: _run(_load(folder, manifest, form), manifest) for form in forms}
    first = manifest.inputs[0].name

    def run(batch: Arrays) -> object:
        return runs[form_at(steps, len(batch[first]))](batch)

    return run


def _load(folder: Path, manifest: Manifest, form: Form) -> Forward:
    variant = manifest.variants[form.variant]
    cpu = torch.device("cpu")
    check_runs_here(variant, cpu, torch.__version__)
    data = [(folder / file).read_bytes() for file in variant.files]
    return load_form(data, variant.format, manifest.inputs, cpu, optimized=form.optimized)


def _run(forward: Forward, manifest: Manifest) -> Run:
    def run(batch: Arrays) -> object:
        with torch.inference_mode():
            tensors = [torch.from_numpy(batch[spec.name]) for spec in manifest.inputs]
            return named_outputs(forward(*tensors), manifest.outputs)

    return run


def _bound(run: Run, batch: Arrays) -> Callable[[], object]:
    return lambda: run(batch)


if __name__ == "__main__":
    sys.exit(main())
