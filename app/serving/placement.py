"""Devices, the replicas on each, and their threads: configured or measured."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeAlias

import structlog
import torch

from app.backends.base import Backend
from app.backends.devices import compute_with, cpu_threads, find_devices
from app.backends.factory import TorchBackends
from app.backends.golden import Golden
from app.backends.selection import (
    Preference,
    Selection,
    planned_batch,
    select,
    stages,
    stored_steps,
)
from app.errors import ArtifactInvalid
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact, Repository
from app.serving.version_policy import VersionPolicy
from app.types import Device, ModelId
from models.cpu_layout import (
    BUSY,
    WEIGHTS,
    Layout,
    MeasuredLayout,
    best,
    cores_of,
    layouts,
)
from models.manifest import Manifest
from models.processor import this_cpu
from models.system.resources import usable_cores

LOG = structlog.get_logger(__name__)
CPU = Device("cpu")
LIMIT_S = 120.0  # for the whole measurement; the watchdog reports a model that hangs


# Finds the best layout of CPU replicas; stops early when the event is set.
Measure: TypeAlias = Callable[[threading.Event], Layout]


class Placement(NamedTuple):
    """The replicas of this process.

    Attributes:
        devices: one per replica.
        threads: intra-op threads of each CPU replica.
        near_memory: whether CPU replicas may be bound to NUMA nodes.
    """

    devices: tuple[Device, ...]
    threads: int
    near_memory: bool = True

    def begin(self, replica: int) -> Callable[[], None]:
        """The function that the thread of a replica calls first.

        Args:
            replica: its index in the devices.
        """
        if self.devices[replica].kind != "cpu":
            return partial(compute_with, self.threads)
        on_cpu = [index for index, each in enumerate(self.devices) if each.kind == "cpu"]
        layout = Layout(len(on_cpu) if self.near_memory else 1, self.threads)
        number = on_cpu.index(replica)
        return partial(begin_replica, number, layout)


def place(
    spec: str,
    replicas_per_device: int | None,
    threads: int | None,
    processes: int,
    measure: Measure | None,
) -> Placement:
    """Choose the replicas.

    Args:
        spec: see `find_devices`.
        replicas_per_device: None: one, or as measured if `auto` finds only a CPU.
        threads: threads of each CPU replica; None: see `cpu_threads`, or as measured.
        processes: number of serving processes, each with these devices.
        measure: finds the layout of CPU replicas; only called if there is a choice. None: do not
            measure.

    Raises:
        ValueError: if the spec is malformed or names missing devices.
    """
    devices = find_devices(spec, replicas_per_device or 1)
    free = spec == "auto" and (replicas_per_device, threads) == (None, None)
    if measure and free and devices == (CPU,) and processes == 1 and usable_cores() > 1:
        layout = _in_time(measure)
        if layout is not None:
            return Placement((CPU,) * layout.replicas, layout.threads)
    # Processes do not know each other's choice: all would start on the same node.
    return Placement(devices, threads or cpu_threads(devices, processes), processes == 1)


def begin_replica(number: int, layout: Layout) -> None:
    """Set the threads and the cores of a CPU replica, in its own thread.

    The usable cores are looked up here, because they can change while the process runs.
    """
    compute_with(layout.threads, cores_of(number, layout))


@dataclass(frozen=True, slots=True)
class Trial:
    """The model to measure with.

    Attributes:
        default_model: the name of the model; None: the largest one.
        policy: selects its version.
        settings: returns a model's settings, by its name.
    """

    default_model: str | None
    policy: VersionPolicy
    settings: Callable[[str], ModelSettings]


def measured_layout(repository: Repository, trial: Trial, stop: threading.Event) -> Layout:
    """The best layout for the default model, or the largest one, on the cores of this process.

    The artifact's own layout is used if it was measured under the same conditions.

    Args:
        repository: contains the model's artifact.
        trial: what to measure.
        stop: set when the result is no longer needed.

    Raises:
        LookupError: if there is no such model.
        Exception: if it cannot be loaded or run.
    """
    found = repository.versions()
    artifact = _model_to_measure(repository, found, trial)
    candidates = layouts(usable_cores())
    manifest, settings = artifact.manifest, trial.settings(artifact.id.name)
    preference = Preference(settings.variant, settings.precision)
    selection = select(manifest, preference, [CPU.kind])
    if stages(selection) > 1:
        return candidates[0]  # it would use several replicas for its stages
    most = settings.largest_batch(planned_batch(manifest, selection.precision, [CPU.kind]))
    plan = manifest.plan.on(CPU.kind) if manifest.plan else None
    batch_size = plan.quick_batch(most) if plan else 1
    stored, why_not = _stored_layout(manifest, selection, candidates, most, batch_size)
    model = str(artifact.id)
    if stored is not None:
        _log_layout(model, stored, measured_by="export")
        return stored.chosen
    names = [str(each) for each in candidates]
    LOG.info("measuring_cpu_layout", model=model, layouts=names, reason=why_not)
    batch = next(Golden(manifest, selection.tolerance).batches([batch_size]))
    backends: dict[bool, Backend] = {}
    try:
        for alone in dict.fromkeys(each.replicas == 1 for each in candidates):
            threads = candidates[0].threads if alone else 1
            devices = (CPU,) * (1 if alone else 2)
            maker = TorchBackends(devices, most, threads)
            backend = maker.make(artifact.folder, manifest, artifact.digest, selection, CPU)
            backends[alone] = backend
            compute_with(threads)  # the fastest form depends on the threads
            backend.load()
            backend.warm_up([batch])
        forwards: Mapping[Layout, Callable[[], object]] = {
            each: partial(backends[each.replicas == 1].run, batch) for each in candidates
        }
        measured, others = best(forwards, batch_size, begin_replica, stop)
    finally:
        for backend in backends.values():
            backend.close()
    _log_layout(model, measured, measured_by="server", others=round(others, 2))
    if others > BUSY:
        LOG.warning(
            "cpu_layout_measured_under_load",
            others=round(others, 2),
            chosen=str(measured.chosen),
            instead="start when the machine is idle, or set TORCHLANE_DEVICES=cpu*REPLICAS and "
            "TORCHLANE_CPU_THREADS",
        )
    return measured.chosen


def _stored_layout(
    manifest: Manifest,
    selection: Selection,
    candidates: tuple[Layout, ...],
    most: int,
    batch_size: int,
) -> tuple[MeasuredLayout | None, str]:
    """The layout that export measured if it applies here; otherwise the reason why not.

    Equal candidates imply equal cores and memory.
    """
    plan = manifest.plan.on(CPU.kind) if manifest.plan else None
    here = this_cpu(candidates[0].threads)
    steps, why_not = stored_steps(plan, selection, here, torch.__version__, most)
    if manifest.plan is None or plan is None or steps is None:
        return None, why_not
    found = plan.layout
    if found is None:
        return None, "the plan has no layout"
    if selection.precision != manifest.plan.precision:
        return None, f"it was measured in {manifest.plan.precision}"
    if found.layouts != candidates:
        return None, f"it was measured among {', '.join(map(str, found.layouts))}"
    if found.batch_size != batch_size:
        return None, f"it was measured in batches of {found.batch_size}; here is {batch_size}"
    return found, ""


def _log_layout(model: str, found: MeasuredLayout, **more: object) -> None:
    rates = zip(found.layouts, found.items_per_s, strict=True)
    LOG.info(
        "cpu_layout_measured",
        model=model,
        chosen=str(found.chosen),
        items_per_s={str(layout): round(rate) for layout, rate in rates},
        batch=found.batch_size,
        **more,
    )


def _model_to_measure(
    repository: Repository, found: Mapping[str, Sequence[int]], trial: Trial
) -> Artifact:
    """The newest wanted version of the default model; its files are checked as they are read.

    Without a default model, the largest model is used, which gains most from the right layout.

    Raises:
        LookupError: if there is no such version.
    """
    wanted = {
        name: trial.policy.wanted(name, numbers).candidates for name, numbers in found.items()
    }
    if trial.default_model is not None:
        names = [trial.default_model]
    else:
        names = sorted(wanted, key=lambda name: -_weights_bytes(repository, name, wanted[name]))
    for name in names:
        for number in wanted.get(name, ()):
            try:
                return repository.open(ModelId(name, number), whole=False)
            except ArtifactInvalid as error:  # reported when it is loaded
                LOG.debug("not_measured", model=f"{name}/{number}", problem=str(error))
    of = f"version of {trial.default_model!r}" if trial.default_model else "intact model"
    raise LookupError(f"the repository has no {of} to measure")


def _weights_bytes(repository: Repository, name: str, candidates: Sequence[int]) -> int:
    """Total size of the weight files of the first candidate, in bytes."""
    files = [file for number in candidates[:1] for file in repository.stamp(ModelId(name, number))]
    return sum(size for file, size, *_ in files if file.endswith(WEIGHTS))


def _in_time(measure: Measure) -> Layout | None:
    """The measured layout; None if measuring failed or hung, which loading will report."""
    found: queue.SimpleQueue[Layout | Exception] = queue.SimpleQueue()
    stop = threading.Event()

    def run() -> None:
        try:
            found.put(measure(stop))
        except Exception as error:  # passed to the caller
            found.put(error)

    threading.Thread(target=run, name="measures-layout", daemon=True).start()
    problem: Exception
    try:
        layout = found.get(timeout=LIMIT_S)
    except queue.Empty:
        stop.set()
        problem = TimeoutError(f"it took longer than {LIMIT_S:g} s")
    else:
        if isinstance(layout, Layout):
            return layout
        problem = layout
    if isinstance(problem, LookupError):  # no model yet, which is not an error
        LOG.info("cpu_layout_not_measured", reason=str(problem))
    else:
        LOG.warning("cpu_layout_not_measured", reason=f"{type(problem).__name__}: {problem}")
    return None
