"""The dependencies of the routes, passed to them once when the application is built."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from app.access.guard import Guard
from app.api.answers import AnswerMemory
from app.api.dialect import Dialects
from app.api.idle import IdleLimit
from app.api.memo import AnswerMemo
from app.api.memory import BodyMemory
from app.api.offload import OffloadPool
from app.api.origins import Hosts, Origins
from app.api.turns import Turns
from app.engine.engine import Engine
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModels
from app.registry.repository import Repository
from app.serving.lifecycle import Lifecycle
from app.serving.releases.shadows import Shadows
from app.serving.releases.steps import Releases
from app.serving.residency.on_demand import OnDemandModels
from app.telemetry.access_log import AccessLog
from app.telemetry.tracing import Tracing
from app.types import Profile


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """The limits of one request.

    Attributes:
        timeout_s: default and maximum timeout of a request.
        head_timeout_s: time limit for its head to arrive.
        open_metrics: whether GET /metrics needs no key.
        show_model_errors: whether answers include the model's own error text.
    """

    max_body_bytes: int
    max_items: int
    max_answer_bytes: int
    timeout_s: float
    head_timeout_s: float
    open_metrics: bool
    show_model_errors: bool


class Profiler(Protocol):
    """Records one trace at a time."""

    async def profile(self, seconds: float, *, compressed: bool) -> Profile:
        """Record for this time, or until the server stops or the trace is full.

        Raises:
            AlreadyRecording: if another profile is being recorded, in any worker.
            NotRecorded: if there is no room in the temporary folder.
            ShuttingDown: if the server is stopping.
        """


@dataclass(frozen=True, slots=True)
class Service:
    """The engine, the loaded models, and all components between them and callers."""

    dialects: Dialects
    engine: Engine
    lifecycle: Lifecycle
    on_demand: OnDemandModels
    releases: Releases
    shadows: Shadows
    loaded: LoadedModels
    limits: RequestLimits
    repository: Repository
    metrics: Metrics
    memo: AnswerMemo
    bodies: BodyMemory
    answers: AnswerMemory
    turns: Turns
    offload: OffloadPool
    idle: IdleLimit
    guard: Guard
    hosts: Hosts
    origins: Origins
    tracing: Tracing
    access_log: AccessLog
    profiler: Profiler
