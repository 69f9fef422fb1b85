"""Which devices, how many replicas on each, and with how many threads: as set, or as measured."""

from __future__ import annotations

import math
import queue
import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

import structlog

from app.backends.devices import compute_with, cpu_threads, find_devices
from app.backends.factory import TorchBackends
from app.backends.golden import Golden
from app.backends.layout import Layout, best, layouts
from app.backends.selection import Preference, select
from app.repository.store import Artifact, Repository
from app.types import Device, ModelId
from app.versions import VersionPolicy
from models.manifest import Manifest
from models.resources import memory_left_bytes, numa_nodes, usable_cores

LOG = structlog.get_logger(__name__)
CPU = Device("cpu")
LIMIT_S = 120.0  # for measuring as a whole; a model may hang, and says so where it is watched
FORWARD_S = 0.05  # that a measured forward takes at most, where smaller batches can see to it
MEMORY_SHARE = 0.5  # of what is left, for the replicas' copies of the model


class Placement(NamedTuple):
    """What replicas there are.

    Attributes:
        devices: one for each replica.
        threads: intra-op threads of each replica on the CPU.
    """

    devices: tuple[Device, ...]
    threads: int

    def begin(self, replica: int) -> Callable[[], None]:
        """What the thread of a replica does first.

        Args:
            replica: its place among the devices.
        """
        if self.devices[replica].kind != "cpu":
            return partial(compute_with, self.threads)
        on_cpu = [index for index, each in enumerate(self.devices) if each == CPU]
        cores = cores_of(on_cpu.index(replica), Layout(len(on_cpu), self.threads))
        return partial(compute_with, self.threads, cores)


def place(
    spec: str,
    replicas_per_device: int | None,
    threads: int | None,
    processes: int,
    measure: Callable[[], Layout] | None,
) -> Placement:
    """Find the replicas.

    Args:
        spec: see `find_devices`.
        replicas_per_device: None: one, or on a CPU that nobody named what is measured.
        threads: of each replica on the CPU; None: see `cpu_threads`, or what is measured.
        processes: that serve on this machine together, each with these devices.
        measure: finds the layout of CPU replicas; only called where there is a choice. None: it
            is not asked for.

    Raises:
        ValueError: if the spec names devices that are not there, or is none.
    """
    devices = find_devices(spec, replicas_per_device or 1)
    free = spec == "auto" and (replicas_per_device, threads) == (None, None)
    if measure and free and devices == (CPU,) and processes == 1 and usable_cores() > 1:
        layout = _in_time(measure)
        if layout is not None:
            return Placement((CPU,) * layout.replicas, layout.threads)
    return Placement(devices, threads or cpu_threads(devices, processes))


def cores_of(replica: int, layout: Layout) -> frozenset[int] | None:
    """The cores that a CPU replica is kept to: those of one NUMA node, where it fits; None: all."""
    nodes = numa_nodes()
    fits = layout.threads <= min(map(len, nodes), default=0)
    return nodes[replica % len(nodes)] if len(nodes) > 1 and fits and layout.replicas > 1 else None


def measured_layout(
    repository: Repository,
    policy: VersionPolicy,
    default_model: str | None,
    preference: Preference,
    max_batch_size: int,
) -> Layout:
    """The best layout for the model that is mostly asked for, on the cores of this process.

    Args:
        repository: where it lies.
        policy: which version of it.
        default_model: its name; None: the only one there is.
        preference: in which variant.
        max_batch_size: of the server.

    Raises:
        LookupError: if it is not known which model that is.
        Exception: if it cannot be loaded or run.
    """
    artifact = _mostly_asked_for(repository, policy, default_model)
    cores = usable_cores()
    candidates = layouts(cores, _most_replicas(artifact, cores))
    selection = select(artifact.manifest, preference, [CPU.kind])
    golden = Golden(artifact.manifest, selection.tolerance)
    batch_size = _quick_size(artifact.manifest, max_batch_size)
    batch = golden.batches([batch_size])[0]
    # Where there is one replica the form may hold the GIL, see `TorchBackends.make`.
    backends = {
        alone: TorchBackends(
            (CPU,) * (1 if alone else 2), max_batch_size, threads, trial=True
        ).make(artifact.folder, artifact.manifest, artifact.digest, selection, CPU)
        for alone, threads in ((True, candidates[0].threads), (False, 1))
        if alone or any(each.replicas > 1 for each in candidates)
    }
    try:
        for backend in backends.values():
            backend.load()
            backend.warm_up([batch])
        forwards: Mapping[Layout, Callable[[], object]] = {
            each: partial(backends[each.replicas == 1].run, batch) for each in candidates
        }
        return best(forwards, batch_size, cores_of)
    finally:
        for backend in backends.values():
            backend.close()


def _quick_size(manifest: Manifest, most: int) -> int:
    """The largest batch that is not too slow to measure with, by what export has measured."""
    plan = manifest.plan.on(CPU.kind) if manifest.plan else None
    quickest_us: dict[int, float] = {}
    for times in plan.times if plan else ():
        for size, median_us in zip(times.batch_sizes, times.median_us, strict=True):
            quickest_us[size] = min(median_us, quickest_us.get(size, math.inf))
    quick = [size for size, us in quickest_us.items() if size <= most and us <= FORWARD_S * 1e6]
    return max(quick, default=1)


def _mostly_asked_for(
    repository: Repository, policy: VersionPolicy, default_model: str | None
) -> Artifact:
    found = repository.versions()
    name = default_model or (next(iter(found)) if len(found) == 1 else "digits")
    if name not in found:
        raise LookupError(f"the repository has no model {name!r}")
    for number in policy.wanted(name, found[name]).candidates:
        return repository.open(ModelId(name, number))
    raise LookupError(f"no version of {name!r} is to be served")


def _most_replicas(artifact: Artifact, cores: int) -> int:
    """How many copies of the model there is memory for."""
    left = memory_left_bytes()
    manifest = artifact.manifest
    size = max(
        sum(manifest.files[file].bytes for file in variant.files)
        for variant in manifest.variants.values()
    )
    return cores if left is None else max(1, min(cores, int(left * MEMORY_SHARE) // max(1, size)))


def _in_time(measure: Callable[[], Layout]) -> Layout | None:
    """What is measured, unless it fails or does not come back: then whoever loads it says why."""
    found: queue.SimpleQueue[Layout | Exception] = queue.SimpleQueue()

    def run() -> None:
        try:
            found.put(measure())
        except Exception as error:  # handed over
            found.put(error)

    threading.Thread(target=run, name="measures-layout", daemon=True).start()
    problem: Exception
    try:
        layout = found.get(timeout=LIMIT_S)
    except queue.Empty:
        problem = TimeoutError(f"it took longer than {LIMIT_S:g} s")
    else:
        if isinstance(layout, Layout):
            return layout
        problem = layout
    LOG.warning("cpu_layout_not_measured", reason=f"{type(problem).__name__}: {problem}")
    return None
