"""What holds for one model: how it is batched and queued, where it runs, who may call it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from models.plan import Precision

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Resolved once per model: what the models file says of it, else the server's settings.

    Attributes:
        max_batch_size: items in one batch at most.
        plan_may_lower: whether that is less for an artifact whose plan ends at smaller batches.
        batch_wait_s: how long the oldest item waits for others although a replica is idle.
        queue_limit_items: items that may wait.
        queue_limit_bytes: bytes of their arrays.
        timeout_s: a request's time where it does not say; also the most it may say.
        devices: names of those that it runs on; None: all.
        replicas: on how many of their replicas it runs at most; None: all.
        variant: the only one to serve; None: the artifact's plan.
        precision: to compute in; None: the artifact's choice.
        pinned_by_file: whether these two are of the models file.
        cache: whether its predictions are kept.
        allowed_keys: names of the API keys that may call it; None: all.
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

    def installed_as(self, other: ModelSettings) -> ModelSettings:
        """These settings, but for what takes a load to change: that is as in the other ones."""
        return replace(
            self,
            max_batch_size=other.max_batch_size,
            plan_may_lower=other.plan_may_lower,
            devices=other.devices,
            replicas=other.replicas,
            variant=other.variant,
            precision=other.precision,
            pinned_by_file=other.pinned_by_file,
        )

    def largest_batch(self, planned: int | None) -> int:
        """Items in one batch at most, of an artifact whose plan reaches so many; None: no plan."""
        if planned is None or not self.plan_may_lower:
            return self.max_batch_size
        return min(self.max_batch_size, planned)
