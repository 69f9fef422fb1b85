"""Settings of one model: batching, queueing, devices, and allowed callers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from app.registry.releases import Release, Shadow
from app.registry.weights import BODY
from models.choices import Precision

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")

# Of the models file. Everything else is for models alone.
OF_HANDLERS = frozenset(("python", "processes", "user"))
OF_BOTH = frozenset(
    ("timeout_ms", "queue_limit_items", "allowed_keys", "required", "weights", "release", "sticky")
)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """The settings of one model, from the models file or else from the server's settings.

    Attributes:
        max_batch_size: maximum number of items in a batch.
        plan_may_lower: whether a plan that ends at smaller batches lowers this maximum.
        batch_wait_s: how long the oldest item waits for others although a replica is idle.
        queue_limit_items: maximum number of queued items.
        queue_limit_bytes: maximum bytes of their arrays.
        timeout_s: default and maximum time of a request.
        devices: names of the devices to run on; None: all.
        replicas: maximum number of their replicas to run on; None: all.
        variant: the only variant to serve; None: the artifact's plan.
        precision: the precision to compute in; None: the artifact's choice.
        pinned_by_file: whether the models file sets variant and precision.
        cache: whether its predictions are cached.
        allowed_keys: names of the API keys that may call it; None: all.
        python: the interpreter of a handler; None: the server's.
        processes: how many processes run a handler; None: as its artifact says.
        user: that they run as; None: the server's.
        weights: of its versions in requests that name none; empty: the newest gets all.
        release: to a version in steps, which then takes the place of weights; None: no release.
        sticky: what these requests have in common to get the same version, see `Split`.
        shadow: the version that computes copies of what others compute; None: none does.
        on_demand: whether it is loaded when a request needs it, not at the start.
        idle_s: seconds without a request after which it is unloaded again; None: no limit.
        set_by_file: names of the settings that the models file has for it.
    """

    max_batch_size: int = 64
    plan_may_lower: bool = True
    batch_wait_s: float = 0.0
    queue_limit_items: int = 1024
    queue_limit_bytes: int = 1 << 30
    timeout_s: float = 30.0
    devices: tuple[str, ...] | None = None
    replicas: int | None = None
    variant: str | None = None
    precision: Precision | None = None
    pinned_by_file: bool = False
    cache: bool = True
    allowed_keys: frozenset[str] | None = None
    python: str | None = None
    processes: int | None = None
    user: str | None = None
    weights: Mapping[int, float] = field(default_factory=dict)
    release: Release | None = None
    sticky: str = BODY
    shadow: Shadow | None = None
    on_demand: bool = False
    idle_s: float | None = None
    set_by_file: frozenset[str] = frozenset()

    def installed_as(self, other: ModelSettings) -> ModelSettings:
        """These settings, with the other's values for everything that needs a reload to change."""
        return replace(
            self,
            max_batch_size=other.max_batch_size,
            plan_may_lower=other.plan_may_lower,
            devices=other.devices,
            replicas=other.replicas,
            variant=other.variant,
            precision=other.precision,
            pinned_by_file=other.pinned_by_file,
            python=other.python,
            processes=other.processes,
            user=other.user,
            on_demand=other.on_demand,
        )

    def misplaced(self, *, in_handler: bool) -> str | None:
        """Which settings of the models file a model or a handler cannot have; None: all fit."""
        wrong = self.set_by_file & OF_HANDLERS
        if in_handler:
            wrong = self.set_by_file - OF_HANDLERS - OF_BOTH
        judged = self.release and self.release.stop_if.agreement_below is not None
        if not wrong and in_handler and judged:
            return (
                "the models file sets release.stop_if.agreement_below, which compares the answers "
                "of models; this is a handler: leave it out"
            )
        if not wrong:
            return None
        kind, other = ("handler", "model") if in_handler else ("model", "handler")
        return (
            f"the models file sets {', '.join(sorted(wrong))}, which only a {other} can have; this "
            f"is a {kind}"
        )

    def largest_batch(self, planned_batch: int | None) -> int:
        """Maximum batch size if the artifact's plan ends at `planned_batch`; None: no plan."""
        if planned_batch is None or not self.plan_may_lower:
            return self.max_batch_size
        return min(self.max_batch_size, planned_batch)
