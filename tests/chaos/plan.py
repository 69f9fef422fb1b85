"""What a round is to do, and what came of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from tests.chaos.asking import MAX_BODY_BYTES, MAX_ITEMS
from tests.chaos.checker import Checker
from tests.chaos.truth import DEFAULT_MODEL

DRAIN_S = 15.0
RELOAD_S = "0.3"
ANSWERS_LIMIT_BYTES = 16 << 20  # some answers must be rejected, because others are not read


@dataclass(frozen=True)
class ChaosPlan:
    """What a round does.

    Attributes:
        seed: of everything that is drawn.
        requests: before the stop, at least: they go on until versions were switched and refused,
            where any are published; some more come while it stops.
        workers: processes; of several, one is killed.
        servers: behind a balancer; 0: one, without a balancer.
        kills_server: one of several servers is killed.
        retry_on: of the balancer (BALANCER_RETRY_ON); empty: as shipped.
        cache_bytes: of the server.
        hangs: forwards may hang, where there is one process with its three replicas.
        switches: versions are published meanwhile, good and bad.
        timeout_s: of a request, and of a forward before it is given up.
        seconds: at most for a storm.
    """

    seed: int
    requests: int
    workers: int = 1
    servers: int = 0
    kills_server: bool = False
    retry_on: str = ""
    cache_bytes: int = 50_000
    hangs: bool = True
    switches: bool = True
    timeout_s: float = 8.0
    seconds: float = 300.0

    @property
    def kills(self) -> bool:
        """Whether a process is killed: what it had not told of itself is lost with it."""
        return self.workers > 1 or self.kills_server

    @property
    def replicas(self) -> int:
        """Of each process."""
        return 3 if self.workers == 1 else 2

    def settings(self) -> dict[str, str]:
        """Of the server."""
        return {
            "workers": str(self.workers),
            "devices": f"cpu*{self.replicas}",
            "default_model": DEFAULT_MODEL,
            "max_batch_size": "32",
            "queue_limit_items": "512",
            "max_body_bytes": str(MAX_BODY_BYTES),
            "max_items": str(MAX_ITEMS),
            "cache_bytes": str(self.cache_bytes),
            "answers_limit_bytes": str(ANSWERS_LIMIT_BYTES),
            "request_timeout_ms": str(self.timeout_s * 1000),
            "hang_s": str(self.timeout_s),
            "reload_s": RELOAD_S,
            "drain_s": str(DRAIN_S),
            "log_format": "json",
            "handlers": "on",
        }


@dataclass
class Outcome:
    """What a round came to.

    Attributes:
        problems: beside the checker's offences.
        faults: that were injected.
        restarts: of processes of the handler, by cause.
        figures: name -> what was measured.
    """

    plan: ChaosPlan
    checker: Checker
    problems: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    restarts: Counter[str] = field(default_factory=Counter)
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems and not self.checker.offended
