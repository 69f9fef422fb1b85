"""What the routes work with: handed to them once, when the application is put together."""

from __future__ import annotations

from dataclasses import dataclass

from app.access.guard import Guard
from app.api.bodies import BodyMemory
from app.api.memo import AnswerMemo
from app.api.origins import Hosts, Origins
from app.engine.engine import Engine
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModels
from app.serving.lifecycle import Lifecycle


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """What one request may ask for.

    Attributes:
        timeout_s: a request's time where it does not say; also the most it may say.
        head_timeout_s: in which its head must come.
        open_metrics: whether GET /metrics asks for no key.
        show_model_errors: whether answers hold what a model says of an item that it fails on.
    """

    max_body_bytes: int
    max_items: int
    max_answer_bytes: int
    timeout_s: float
    head_timeout_s: float
    open_metrics: bool
    show_model_errors: bool


@dataclass(frozen=True, slots=True)
class Service:
    """The engine, what is loaded and how it gets there, and what stands between it and callers."""

    engine: Engine
    lifecycle: Lifecycle
    loaded: LoadedModels
    limits: RequestLimits
    metrics: Metrics
    memo: AnswerMemo
    bodies: BodyMemory
    guard: Guard
    hosts: Hosts
    origins: Origins
