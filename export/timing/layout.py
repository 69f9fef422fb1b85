"""Measures the CPU layout of a plan: how many replicas and threads a server should have."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable

import torch

from export.errors import reason
from export.timing.contest import runner
from models.choices import Precision
from models.cpu_layout import (
    BUSY,
    Layout,
    MeasuredLayout,
    best,
    cores_of,
    layouts,
)
from models.golden import golden_batches
from models.manifest import Manifest
from models.plan import DevicePlan, Form, form_at
from models.runtimes.forms import Forward
from models.system.resources import usable_cores

CPU = torch.device("cpu")


def best_layout(
    manifest: Manifest,
    plan: DevicePlan,
    precision: Precision,
    open_form: Callable[[Form], Forward],
    tell: Callable[[str], None],
) -> MeasuredLayout | None:
    """Measure the best layout for the forms of a plan on this machine.

    Args:
        manifest: of the artifact.
        plan: of the CPU, with the usual number of threads.
        precision: the default one.
        open_form: returns a form that was timed.
        tell: called with the reason if it could not be measured.

    Returns:
        None if there is no choice or the result is uncertain; then the server measures it.
    """
    cores, steps = usable_cores(), plan.steps.get(precision)
    if cores < 2 or not steps or manifest.variants[steps[0].form.variant].later_stages:
        return None  # stages share the replicas
    size = plan.quick_batch(steps[-1].up_to)
    (batch, *_) = golden_batches(manifest, size)
    forward = runner(open_form(form_at(steps, size)), batch, CPU)
    forwards = dict.fromkeys(layouts(cores), forward)
    try:
        layout, others = best(forwards, size, begin_replica)
    except Exception as error:  # a form may fail in any way when several threads run it
        tell(f"cpu layout: not measured: {reason(error)}")
        return None
    if others > BUSY:
        load = f"other processes used {others:.0%} of the cores"
        tell(f"cpu layout: not stored, {load}; the server measures it")
        return None
    return layout


def begin_replica(replica: int, layout: Layout) -> None:
    """Set the threads and the cores of a replica, in its own thread."""
    torch.set_num_threads(layout.threads)
    cores = cores_of(replica, layout)
    if cores is not None:
        with contextlib.suppress(OSError):  # forbidden: it may run on any core
            os.sched_setaffinity(0, cores)
