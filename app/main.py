"""The composition root: puts the parts together and hands each what it needs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import platform
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import structlog
from fastapi import FastAPI

from app.api.errors import install_error_handlers
from app.api.memo import AnswerMemo
from app.api.middleware import RequestMiddleware
from app.api.openapi import install_openapi
from app.api.protocol import protocol_for
from app.api.routes import add_routes
from app.api.service import RequestLimits, Service
from app.backends.base import Backend
from app.backends.devices import find_devices, share_one_core
from app.backends.factory import TorchBackends
from app.backends.selection import Preference, Selection
from app.engine import engine
from app.engine.clock import LoopClock
from app.engine.engine import Engine, EngineConfig
from app.engine.policy import BatchLimits
from app.engine.replicas import Replica, ReplicaState
from app.errors import DeviceLost
from app.lifecycle import BackendFactory, Lifecycle, LifecycleConfig
from app.loaded import LoadedModels
from app.metrics import Metrics, ServedModel
from app.processes.shared_metrics import SharedMetrics
from app.processes.worker import NOT_READY, READY, Worker
from app.repository.store import Artifact, Repository
from app.settings import Settings
from app.types import Device

LOG = structlog.get_logger(__name__)
DEVICE_LOST_EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h
# A wave of 32 requests is read within it; what trickles in all the time is not held for longer.
GATHER_S = 0.002
# On one core: a p99 that is 1.1 to 2.3 times shorter (ADR 12).
BLOCK_S = 0.005
MEMO_SHARE = 8  # the memo of repeated bodies takes an eighth of the cache's bytes, beside them
GC_THRESHOLD = 10_000  # allocations between two looks at the youngest objects; default 700
DEVICE_LOST_GRACE_S = 1.0  # for the errors to reach their callers


def create_app(
    settings: Settings, make_backend: BackendFactory | None = None, worker: Worker | None = None
) -> FastAPI:
    """Put the application together; nothing is loaded before its lifespan starts.

    Args:
        settings: everything that can be set.
        make_backend: another way to make backends than torch's, for tests.
        worker: which of several processes this is; None: the only one.

    Raises:
        ValueError: if the settings name devices that are not there.
    """
    devices = find_devices(settings.devices, settings.replicas_per_device)
    metrics = SharedMetrics(worker.folder, worker.index) if worker else Metrics()
    first = worker.index * len(devices) if worker else 0  # no two replicas of a server share a name
    replicas = [Replica(f"{device}#{n}", device) for n, device in enumerate(devices, first)]
    block_s = BLOCK_S if share_one_core(devices, worker.of if worker else 1) else 0.0
    engine = Engine(replicas, LoopClock(), metrics, _engine_config(settings, block_s))
    loaded = LoadedModels(settings.default_model)
    preference = Preference(settings.variant, settings.plan_precision)

    def loading_ended() -> None:
        _calm_gc()
        if worker:
            worker.tell(READY if lifecycle.readiness().ready else NOT_READY)

    lifecycle = Lifecycle(
        Repository(settings.model_dir),
        engine,
        replicas,
        loaded,
        make_backend
        or _torch_backends(devices, settings.max_batch_size, worker.of if worker else 1),
        LifecycleConfig(
            settings.max_batch_size, preference, partial(_end_process, metrics), loading_ended
        ),
    )
    _watch(metrics, replicas, lifecycle)
    limits = RequestLimits(
        max_body_bytes=settings.max_body_bytes,
        max_items=settings.max_items,
        max_answer_bytes=settings.max_answer_bytes,
        timeout_s=settings.request_timeout_ms / 1000,
    )
    memo = AnswerMemo(settings.cache_bytes // MEMO_SHARE)
    service = Service(engine, lifecycle, loaded, limits, metrics, memo)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        metrics.open()
        await lifecycle.start()
        yield
        await lifecycle.stop(settings.drain_s)
        metrics.close()

    app = FastAPI(
        title="Torchlane",
        version=_version("torchlane"),
        description="Predictions by exported PyTorch models.",
        lifespan=lifespan,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.lifecycle = lifecycle  # for __main__, which begins the drain before the lifespan ends
    app.state.protocol = protocol_for(service)  # for its server
    install_error_handlers(app)
    add_routes(app, service)
    # The last one added is the outermost.
    app.add_middleware(RequestMiddleware, metrics=metrics, stopping=lambda: lifecycle.stopping)
    install_openapi(app, service)
    return app


def _watch(metrics: Metrics, replicas: Sequence[Replica], lifecycle: Lifecycle) -> None:
    """What the metrics ask at each scrape, and what runs."""
    for replica in replicas:
        metrics.replica(replica.name, str(replica.device), partial(_is_ready, replica))

    def served() -> Iterator[ServedModel]:
        for model in lifecycle.loaded.models():
            selection = model.selection
            yield ServedModel(model.id, selection.variant or "plan", selection.precision)

    metrics.watch(lambda: lifecycle.readiness().ready, served)
    python, compiled = platform.python_version(), str(is_compiled()).lower()
    metrics.build_info.labels(_version("torchlane"), _version("torch"), python, compiled).set(1)


def is_compiled() -> bool:
    """Whether the request path runs as machine code, see deploy/compile.py."""
    return Path(engine.__file__).suffix != ".py"


def _is_ready(replica: Replica) -> bool:
    return replica.state is ReplicaState.READY


def _engine_config(settings: Settings, block_s: float) -> EngineConfig:
    return EngineConfig(
        batches=BatchLimits(settings.max_batch_size, settings.batch_wait_ms / 1000, GATHER_S),
        queue_limit_items=settings.queue_limit_items,
        cache_bytes=settings.cache_bytes,
        cache_ttl_s=settings.cache_ttl_s,
        block_s=block_s,
    )


def _torch_backends(
    devices: tuple[Device, ...], max_batch_size: int, processes: int
) -> BackendFactory:
    backends = TorchBackends(devices, max_batch_size, processes)

    def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
        return backends.make(artifact.folder, artifact.manifest, artifact.digest, selection, device)

    return make


def _end_process(metrics: Metrics, fault: DeviceLost) -> None:
    """A sticky CUDA error poisons the process: end it; whoever supervises it starts it anew."""
    LOG.critical("device_lost", fault=str(fault), exit_code=DEVICE_LOST_EXIT_CODE)

    def end() -> None:
        metrics.close()  # else what ended it would not be in the counts of its worker
        os._exit(DEVICE_LOST_EXIT_CODE)

    asyncio.get_running_loop().call_later(DEVICE_LOST_GRACE_S, end)


def _calm_gc() -> None:
    """Keep the garbage collector from walking modules and models again and again under load.

    What is loaded by now stays, so it is taken out of the collector's sight; requests make garbage
    that reference counts free at once, so it looks for cycles less often than by default.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, 20, 100)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:  # run from a checkout that was not installed
        return "0+unknown"
