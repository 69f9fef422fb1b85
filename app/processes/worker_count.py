"""Number of serving processes if TORCHLANE_WORKERS is `auto` (docs/adr/0029)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from app.backends.shape_caches import CACHE_BYTES, has_free_sizes
from app.registry.repository import Repository
from app.serving.version_policy import VersionPolicy
from app.types import ModelId
from models.choices import Precision
from models.integrity import IntegrityError, read_manifest
from models.manifest import Manifest
from models.system.distributions import installed_version
from models.system.resources import memory_left_bytes, usable_cores

MOST = 4  # more were not measured, and each has its own batches and memory
# The longest forward per item of a small model: equal to the rest of a JSON single with machine
# code (docs/adr/0030). With a longer forward the event loop is no longer the limit.
FORWARD_S = 35e-6
PROCESS_BYTES = 256 << 20  # of a forked process, which may share some of them
MEMORY_SHARE = 0.5  # of the free memory, for all processes
COPIES = 2  # of the weights, while a model is loaded
# If one of these exists, torch may find a GPU: of CUDA, of Linux on Windows, of ROCm.
GPUS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")


class Choice(NamedTuple):
    """A number of processes, and the reason."""

    workers: int
    reason: str


@dataclass(frozen=True, slots=True)
class Served:
    """The models to be served.

    Attributes:
        root: the repository.
        policy: selects versions.
        variant: the only variant to serve; None: the plan's forms.
        precision: the precision to compute in; None: the artifact's.
        max_batch_size: maximum number of items in a batch.
    """

    root: Path
    policy: VersionPolicy
    variant: str | None
    precision: Precision | None
    max_batch_size: int


def may_have_gpu() -> bool:
    """Whether torch might find a GPU; checked without torch, whose import takes a second."""
    if (installed_version("torch") or "").endswith("+cpu"):
        return False
    return any(Path(each).exists() for each in GPUS)


def choose(served: Served, *, has_own_layout: bool, has_rate_limits: bool) -> Choice:
    """One process per core, up to MOST, if every model is small; otherwise one.

    Args:
        served: the models to be served.
        has_own_layout: whether devices, replicas or threads of one process are set.
        has_rate_limits: whether callers have limits, which each process would apply separately.
    """
    cores = usable_cores()
    if cores < 2:
        return Choice(1, "there is one core")
    if has_own_layout:
        return Choice(1, "devices, replicas or threads are set")
    if has_rate_limits:
        return Choice(1, "rate limits are exact in one process only")
    if may_have_gpu():
        return Choice(1, "there may be a GPU")
    return _by_models(served, cores)


def _by_models(served: Served, cores: int) -> Choice:
    """Choose by the models' forward times and memory.

    Manifests are read but not verified: a wrong one can cause a wrong choice, but is then rejected
    when it is loaded.
    """
    slowest, nbytes, process_bytes = (0.0, ""), 0, PROCESS_BYTES
    for model, manifest in wanted_manifests(served.root, served.policy):
        item_s = item_s_of(manifest, served)
        if item_s is None:
            return Choice(1, f"{model} has no measured times on a CPU")
        slowest = max(slowest, (item_s, str(model)))
        nbytes += sum(file.bytes for file in manifest.files.values())
        if has_free_sizes(manifest):
            process_bytes = PROCESS_BYTES + CACHE_BYTES
    item_s, name = slowest
    if not name:
        return Choice(1, "there is no model yet")
    measured = f"a forward of {name} takes {_microseconds(item_s)} us an item"
    if item_s > FORWARD_S:
        return Choice(1, f"{measured}, more than {FORWARD_S * 1e6:.0f}")
    free = memory_left_bytes()
    if free is None:
        return Choice(1, "this system does not report its free memory")
    left = int(free * MEMORY_SHARE)
    fitting = left // (process_bytes + COPIES * nbytes)
    if fitting < 2:
        return Choice(1, f"two processes may not fit into half of the free memory, {left:,} bytes")
    return Choice(min(cores, fitting, MOST), f"{cores} cores, and {measured}")


def _microseconds(seconds: float) -> str:
    """Microseconds with at least two significant digits: 0.27, 3.1, 42, 1,234."""
    return f"{seconds * 1e6:,.0f}" if seconds >= 10e-6 else f"{seconds * 1e6:.2g}"


def wanted_manifests(root: Path, policy: VersionPolicy) -> Iterator[tuple[ModelId, Manifest]]:
    """The versions to be served, if all of them can be loaded; leaves out unreadable ones."""
    try:
        found = Repository(root).versions()
    except OSError:  # reported when the models are loaded
        return
    for name, numbers in found.items():
        wanted = policy.wanted(name, numbers)
        for number in wanted.candidates[: wanted.most]:
            with contextlib.suppress(IntegrityError):  # reported when it is loaded
                yield ModelId(name, number), read_manifest(root / name / str(number), root)


def item_s_of(manifest: Manifest, served: Served) -> float | None:
    """Seconds of a forward per item at the best measured batch size; None if none was measured."""
    plan = manifest.plan.on("cpu") if manifest.plan else None
    if manifest.plan is None or plan is None:
        return None
    precision = served.precision or manifest.plan.precision
    found = [
        median_us / size * 1e-6
        for times in plan.times
        for size, median_us in zip(times.batch_sizes, times.median_us, strict=True)
        if size <= served.max_batch_size
        and (times.form.variant == served.variant if served.variant else True)
        and (times.precision == precision or served.variant)
    ]
    return min(found, default=None)
