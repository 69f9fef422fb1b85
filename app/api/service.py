"""What the routes work with: handed to them once, when the application is put together."""

from __future__ import annotations

from dataclasses import dataclass

from app.api.memo import AnswerMemo
from app.engine.engine import Engine
from app.lifecycle import Lifecycle
from app.loaded import LoadedModels
from app.metrics import Metrics


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may ask for.

    Attributes:
        timeout_s: a request's time where it does not say; also the most it may say.
    """

    max_body_bytes: int
    max_items: int
    max_answer_bytes: int
    timeout_s: float


@dataclass(frozen=True, slots=True)
class Service:
    """The engine, the life cycle, what is loaded, the limits, the metrics and the memo."""

    engine: Engine
    lifecycle: Lifecycle
    loaded: LoadedModels
    limits: RequestLimits
    metrics: Metrics
    memo: AnswerMemo
