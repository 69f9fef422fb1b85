"""The composition root: builds all parts and passes their dependencies."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import platform
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from fastapi import FastAPI

from app.access.entries import EntryError
from app.access.guard import Guard
from app.access.keyring import Keyring
from app.api.answers import AnswerMemory
from app.api.error_handlers import install_error_handlers
from app.api.idle import IdleLimit, most_connections
from app.api.memo import AnswerMemo
from app.api.memory import BodyMemory
from app.api.offload import OffloadPool, pool_of
from app.api.openapi.document import install_openapi
from app.api.origins import Hosts, Origins
from app.api.ports import is_free_for_connection
from app.api.routes import add_routes, dialects_with
from app.api.service import RequestLimits, Service
from app.api.transport.connection import connections_for
from app.api.transport.middleware import surround
from app.api.turns import Turns
from app.backends.base import Backend
from app.backends.devices import find_devices, share_one_core
from app.backends.factory import TorchBackends
from app.backends.nvml import readings_of
from app.backends.profiler import Profiler
from app.backends.selection import Selection
from app.backends.shape_caches import bound_caches
from app.engine import engine
from app.engine.batch_policy import BatchLimits
from app.engine.clock import LoopClock
from app.engine.engine import Engine, EngineConfig
from app.engine.replica import Replica, ReplicaState
from app.metrics import Metrics
from app.metrics.gauges import ServedModel
from app.model_source import cache_of, source_of, trusted_keys
from app.processes.serving_process import calm_gc, end_process, give_memory_back
from app.processes.shared_metrics import SharedMetrics
from app.processes.worker import NOT_READY, PARTLY_READY, READY, Worker
from app.processes.worker_count import wanted_manifests
from app.registry.loaded_models import LoadedModels
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact, Repository
from app.serving.claims import Claims
from app.serving.handlers import HandlerInstaller, Mode, PoolFactory
from app.serving.installation import GATHER_S
from app.serving.installer import BackendFactory, Installer
from app.serving.lifecycle import MIN_CLOSE_S, Lifecycle, LifecycleConfig
from app.serving.models_file import ModelsFile
from app.serving.overrides import Overrides
from app.serving.placement import Placement, Trial, measured_layout, place
from app.serving.releases.differing import Differing
from app.serving.releases.file import ReleaseFile
from app.serving.releases.shadows import Shadows
from app.serving.releases.steps import Releases
from app.serving.replica_pool import ReplicaPool, log_failure
from app.serving.residency.load_records import LoadRecords
from app.serving.residency.model_memory import MemoryLimits, ModelMemory
from app.serving.residency.on_demand import OnDemandModels
from app.serving.served_artifacts import ServedArtifacts
from app.serving.turn import Turn
from app.serving.version_policy import VersionPolicy
from app.settings import PREFIX, Settings, listed
from app.sources.source import Source
from app.telemetry import variables
from app.telemetry.access_log import AccessLog
from app.telemetry.tracing import Tracing
from app.types import Device
from models.system.distributions import UNKNOWN, installed_version, own_version
from models.system.resources import memory_bytes, usable_cores

if TYPE_CHECKING:
    from app.api.oip.grpc.server import GrpcServer
    from app.shared_cache.redis_tier import RedisTier
    from app.telemetry.provider import Export

LOG = structlog.get_logger(__name__)
# On one core this makes the p99 1.1 to 2.3 times shorter (ADR 12).
BLOCK_S = 0.005
MACHINE_CODE = "machine code takes less processor time: `make serve`, or a wheel for this platform"
FIRST_LOOK_S = 5.0  # wait for models in a store, which decide how many replicas are best
SEND_S = 3.0  # limit for sending the last spans, whose receiver may be unreachable
# Of TORCHLANE_MODEL_MEMORY. The rest is for buffers of libraries and free memory that the allocator
# keeps: both grow with the number of models that come and go.
MODELS_SHARE = 0.95
MEMO_SHARE = 8  # the memo of repeated bodies gets an additional eighth of the cache's bytes


def create_app(
    settings: Settings, make_backend: BackendFactory | None = None, worker: Worker | None = None
) -> FastAPI:
    """Build the application; nothing is loaded before its lifespan starts.

    Args:
        settings: all settings.
        make_backend: creates backends instead of torch's, for tests.
        worker: this process among several; None for a single process.

    Raises:
        ValueError: if the settings name missing devices or malformed keys.
    """
    processes = worker.of if worker else 1
    settings = settings.of_one_process(processes)
    _log_start(worker)
    # Check the settings first: measuring takes seconds.
    metrics = SharedMetrics(worker.index, worker.shared.metrics) if worker else Metrics()
    keyring = Keyring(settings.api_keys, settings.api_keys_file)
    guard = _guard(settings, keyring, metrics)
    models = ModelsFile(
        settings.models_file,
        of_models(settings),
        map(str, find_devices(settings.devices, 1)),
        asks_for_keys=guard.asks_for_keys,
        share_of=partial(settings.share_of, processes=processes),
    )
    metrics.models_file_wrong.set_function(lambda: float(models.problem is not None))
    repository, source = _repository(settings, metrics)
    policy = VersionPolicy.parse(settings.versions)
    trial = Trial(settings.default_model, policy, models.of)
    if make_backend is None:
        _bound_shape_caches(repository, policy)
    placement = place(
        settings.devices,
        settings.replicas_per_device,
        settings.cpu_threads,
        processes,
        partial(measured_layout, repository, trial) if make_backend is None else None,
    )
    devices = placement.devices
    first = worker.index * len(devices) if worker else 0  # replica names are unique in a server
    replicas = [
        Replica(f"{device}#{first + n}", device, placement.begin(n))
        for n, device in enumerate(devices)
    ]
    tracing = Tracing()
    tier = _tier(settings, metrics)
    engine = Engine(
        replicas,
        LoopClock(),
        metrics,
        _engine_config(settings, BLOCK_S if share_one_core(devices, processes) else 0.0),
        tracing,
        tier,
    )
    required = listed(settings.required_models) if settings.required_models else None
    loaded = LoadedModels(settings.default_model)

    def tell_parent(ready: bool, complete: bool) -> None:
        if worker and not lifecycle.stopping:
            worker.tell(NOT_READY if not ready else READY if complete else PARTLY_READY)

    pool = ReplicaPool(replicas, engine.wake, metrics, settings.hang_s)
    make_backend = make_backend or _torch_backends(placement, settings.max_batch_size)
    artifacts = ServedArtifacts(
        repository, Claims(worker.shared.claims, worker.index) if worker else None
    )
    handlers = HandlerInstaller(
        settings.handlers, metrics, _pools(settings.handlers, lambda: service)
    )
    memory = ModelMemory(_memory_limits(settings, processes), engine.is_unused, metrics)
    on_demand = OnDemandModels(
        memory, engine, pool, loaded, metrics, LoadRecords(cache_of(settings))
    )
    installer = Installer(
        artifacts,
        engine,
        pool,
        metrics,
        make_backend,
        models.of,
        handlers=handlers,
        on_demand=on_demand,
    )
    keeping = LifecycleConfig(
        policy=policy,
        artifacts=artifacts,
        overrides=Overrides(worker.shared.overrides if worker else None),
        models=models,
        required=required,
        among_others=worker is not None,
        reload_s=settings.reload_s,
        on_loaded=calm_gc,
        on_readiness=tell_parent,
        on_retired=give_memory_back,
        on_device_lost=partial(end_process, metrics.close),
        source=source,
    )
    lifecycle = Lifecycle(repository, engine, pool, installer, loaded, keeping)
    _watch(metrics, replicas, lifecycle)
    bodies, answers, offload = _memories(settings, processes, metrics)
    service = Service(
        dialects_with(settings.predict_route, settings.health_route),
        engine,
        lifecycle,
        on_demand,
        _releases(settings, lifecycle, models, metrics, worker),
        Shadows(engine, loaded, metrics, _differing(worker)),
        loaded,
        _limits(settings),
        repository,
        metrics,
        AnswerMemo(settings.cache_bytes // MEMO_SHARE),
        bodies,
        answers,
        Turns(),
        offload,
        IdleLimit(most_connections()),
        guard,
        Hosts(listed(settings.trusted_hosts)),
        Origins(listed(settings.cors_origins or "")),
        tracing,
        AccessLog(settings.access_log_ratio, guard.key_name),
        _profiler(worker, lambda: lifecycle.stopping),
    )

    export = _export(service, worker)
    grpc = _grpc(settings, service, worker)
    app = FastAPI(
        title="Torchlane",
        version=own_version(),
        description="Predictions by exported PyTorch models. Bodies may have the Content-Encoding "
        "gzip or deflate.",
        lifespan=_lifespan(service, keyring, grpc, export, tier, settings.drain_s),
        docs_url=None,  # FastAPI's own pages load scripts from the internet
        redoc_url=None,
        redirect_slashes=False,  # the URL would have the caller's Host header, before any check
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.lifecycle = lifecycle  # for __main__, which gives it to the `Server`
    app.state.metrics = metrics  # for __main__, which owns the log
    app.state.connection = connections_for(service)  # for uvicorn
    app.state.grpc = grpc  # for __main__, which binds its port or hands it connections
    app.state.guard = service.guard  # for routes that need a scope
    install_error_handlers(app)
    add_routes(
        app,
        service,
        shows_page=settings.shows_page,
        predict_route=settings.predict_route,
        health_route=settings.health_route,
    )
    surround(app, service)
    install_openapi(app, service)
    return app


def _repository(settings: Settings, metrics: Metrics) -> tuple[Repository, Source | None]:
    """The repository, and what keeps it as a store has it, if it is in one."""
    verifier = trusted_keys(settings)
    if verifier is not None:
        LOG.info("signatures_required", trusted=verifier.origins)
    if isinstance(settings.model_dir, Path):
        return Repository(settings.model_dir, verifier), None
    source = source_of(settings, settings.model_dir, verifier)
    source.start(FIRST_LOOK_S if settings.devices == "auto" else 0.0)
    if settings.source_poll_s > 0:
        metrics.source_age.set_function(source.age_s)
    return source.repository, source


def _pools(mode: Mode, service: Callable[[], Service]) -> PoolFactory | None:
    """Makes the processes of handlers; None if no handler may run."""
    if mode == "off":
        return None
    # Not at the top: most servers run no handlers.
    from app.api.handlers.plane import ServedModels  # noqa: PLC0415
    from app.handlers.pool import ProcessPool  # noqa: PLC0415

    return lambda spec, versions, counts: ProcessPool(
        spec, ServedModels(service(), versions), counts
    )


def _releases(
    settings: Settings,
    lifecycle: Lifecycle,
    models: ModelsFile,
    metrics: Metrics,
    worker: Worker | None,
) -> Releases:
    file = None if settings.models_file is None else ReleaseFile(settings.models_file)
    judging = worker.shared.releases if worker else None
    return Releases(
        lifecycle.loaded,
        models.releases,
        lifecycle.works,
        file,
        metrics,
        judging,
        has_room=lifecycle.has_room,
    )


def _differing(worker: Worker | None) -> Differing:
    """Where shadows keep inputs for which the answers differ."""
    return Differing(worker.shared.differing, worker.index) if worker else Differing()


def _limits(settings: Settings) -> RequestLimits:
    return RequestLimits(
        max_body_bytes=settings.max_body_bytes,
        max_items=settings.max_items,
        max_answer_bytes=settings.max_answer_bytes,
        timeout_s=settings.request_timeout_ms / 1000,
        head_timeout_s=settings.head_timeout_s,
        open_metrics=settings.open_metrics,
        show_model_errors=settings.show_model_errors,
    )


def _bound_shape_caches(repository: Repository, policy: VersionPolicy) -> None:
    """Bound oneDNN's caches by the environment, before anything is computed."""
    wanted = wanted_manifests(repository.root, policy)
    bound_caches((manifest for _, manifest in wanted), os.environ)


def _lifespan(
    service: Service,
    keyring: Keyring,
    grpc: GrpcServer | None,
    export: Export | None,
    tier: RedisTier | None,
    drain_s: float,
) -> Callable[[FastAPI], AbstractAsyncContextManager[None]]:
    """The lifespan: starts the service with the application, and stops it."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        lifecycle = service.lifecycle
        service.metrics.open()
        if grpc is not None:
            await grpc.start()  # before models are loaded: the port may be in use
        if tier is not None:
            tier.start()
        service.releases.start()
        await lifecycle.start()
        following = [
            asyncio.create_task(each)
            for each in (keyring.follow(), service.releases.follow(), service.shadows.follow())
        ]
        for task in following:
            task.add_done_callback(log_failure)
        yield
        for task in following:
            task.cancel()
        service.releases.close()
        lifecycle.begin_drain(drain_s)  # unless the server began it
        if grpc is not None:
            await grpc.close(lifecycle.stop_left_s() / 2)
        await lifecycle.stop(drain_s)
        await service.offload.close(max(MIN_CLOSE_S, lifecycle.stop_left_s()))
        if tier is not None:
            await tier.close()
        if export is not None:
            await export.close(max(MIN_CLOSE_S, min(SEND_S, lifecycle.stop_left_s())))
        service.access_log.tell()
        service.metrics.close()

    return lifespan


def _grpc(settings: Settings, service: Service, worker: Worker | None) -> GrpcServer | None:
    """The gRPC server, if a port is set."""
    if settings.grpc_port is None:
        return None
    # Not at the top: grpcio is in an extra.
    from app.api.oip.grpc.server import GrpcServer, Listen  # noqa: PLC0415

    closed = None if worker is None else worker.connection_closed
    listen = Listen(
        settings.host,
        settings.grpc_port,
        settings.bodies_limit_bytes,
        is_free_for_connection,
        closed,
    )
    return GrpcServer(service, own_version(), listen)


def _tier(settings: Settings, metrics: Metrics) -> RedisTier | None:
    """The second cache, if a URL is set.

    Raises:
        ValueError: if the URL has invalid options.
    """
    if settings.cache_url is None:
        return None
    # Not at the top: redis-py is in an extra.
    from app.shared_cache.address import Address  # noqa: PLC0415
    from app.shared_cache.redis_tier import RedisTier  # noqa: PLC0415

    try:
        address = Address(settings.cache_url)
    except ValueError as error:
        raise ValueError(f"{PREFIX}CACHE_URL: {error}") from None
    ttl_s = min(settings.cache_shared_ttl_s, settings.cache_ttl_s or math.inf)
    budget_s = settings.cache_budget_ms / 1000
    return RedisTier(address, metrics, budget_s=budget_s, ttl_s=ttl_s)


def _export(service: Service, worker: Worker | None) -> Export | None:
    """The exporter of this process's spans, if OpenTelemetry's variables request them."""
    if not variables.traces_wanted(os.environ):
        return None
    # Not at the top: OpenTelemetry's SDK is in an extra.
    from app.telemetry.provider import Export  # noqa: PLC0415

    index = worker.index if worker else None
    export = Export(own_version(), index)
    service.tracing.add(export.spans, export.spans.may_want)
    return export


def _guard(settings: Settings, keyring: Keyring, metrics: Metrics) -> Guard:
    """Build the guard from the settings.

    Raises:
        ValueError: if limits are malformed.
    """
    try:
        return Guard(keyring, settings.rate_limit, metrics, time.monotonic)
    except EntryError as error:
        raise ValueError(f"TORCHLANE_RATE_LIMIT={settings.rate_limit!r}: {error}") from None


def _watch(metrics: Metrics, replicas: Sequence[Replica], lifecycle: Lifecycle) -> None:
    """Register the values that metrics read at each scrape, and the build."""
    for replica in replicas:
        metrics.replica(replica.name, str(replica.device), partial(_is_ready, replica))
    for device in {replica.device for replica in replicas}:
        metrics.device(str(device), readings_of(device))

    def served() -> Iterator[ServedModel]:
        for model in lifecycle.loaded.models():
            selection = model.selection
            yield ServedModel(model.id, selection.variant or "plan", selection.precision)
        for handler in lifecycle.loaded.handlers():
            yield ServedModel(handler.id, "handler", "none")

    metrics.watch(lambda: lifecycle.readiness().ready, served)
    metrics.models_unready.set_function(lambda: len(lifecycle.problems()))
    metrics.versions_changed.set_function(lambda: lifecycle.loaded.changed_versions)
    metrics.model_folders_unreadable.set_function(lambda: len(lifecycle.loaded.unreadable_folders))
    python, compiled = platform.python_version(), str(is_compiled()).lower()
    torch = installed_version("torch") or UNKNOWN
    metrics.build_info.labels(own_version(), torch, python, compiled).set(1)


def _memories(
    settings: Settings, processes: int, metrics: Metrics
) -> tuple[BodyMemory, AnswerMemory, OffloadPool]:
    """What bounds the memory of callers, watched by metrics."""
    bodies = BodyMemory(settings.bodies_limit_bytes)
    answers = AnswerMemory(settings.answers_limit_bytes)
    offload = pool_of(usable_cores() // processes, settings.bodies_limit_bytes)
    metrics.bodies_limit.set(bodies.limit)
    metrics.bodies_bytes.set_function(lambda: bodies.held)
    metrics.answers_limit.set(answers.limit)
    metrics.answers_bytes.set_function(lambda: answers.held)
    metrics.offloaded.set_function(lambda: offload.tasks)
    return bodies, answers, offload


def is_compiled() -> bool:
    """Whether the request path is compiled by mypyc; see deploy/compile.py."""
    return Path(engine.__file__).suffix != ".py"


def _log_start(worker: Worker | None) -> None:
    if worker is not None and worker.index > 0:
        return  # the first worker logs it
    if is_compiled():
        LOG.info("starting", runs="machine code")
    else:
        LOG.info("starting", runs="Python", hint=MACHINE_CODE)


def _is_ready(replica: Replica) -> bool:
    return replica.state is ReplicaState.READY


def of_models(settings: Settings) -> ModelSettings:
    """The settings of models that are not in the models file."""
    return ModelSettings(
        max_batch_size=settings.max_batch_size,
        batch_wait_s=settings.batch_wait_ms / 1000,
        queue_limit_items=settings.queue_limit_items,
        queue_limit_bytes=settings.queue_limit_bytes,
        timeout_s=settings.request_timeout_ms / 1000,
        variant=settings.variant,
        precision=settings.plan_precision,
        cache=settings.cache_bytes > 0,
        on_demand=settings.load == "on-demand",
    )


def _memory_limits(settings: Settings, processes: int) -> MemoryLimits:
    """What the models of one of several processes may take."""
    memory = settings.model_memory
    if memory <= 1:
        memory *= memory_bytes() or sys.maxsize
    return MemoryLimits(int(MODELS_SHARE * memory) // processes, settings.min_resident_s)


def _engine_config(settings: Settings, block_s: float) -> EngineConfig:
    return EngineConfig(
        batches=BatchLimits(settings.max_batch_size, settings.batch_wait_ms / 1000, GATHER_S),
        queue_limit_items=settings.queue_limit_items,
        queue_limit_bytes=settings.queue_limit_bytes,
        cache_bytes=settings.cache_bytes,
        cache_ttl_s=settings.cache_ttl_s,
        block_s=block_s,
    )


def _torch_backends(placement: Placement, max_batch_size: int) -> BackendFactory:
    backends = TorchBackends(placement.devices, max_batch_size, placement.threads)

    def make(artifact: Artifact, selection: Selection, device: Device) -> Backend:
        return backends.make(artifact.folder, artifact.manifest, artifact.digest, selection, device)

    return make


def _profiler(worker: Worker | None, stopping: Callable[[], bool]) -> Profiler:
    of = f", worker {worker.index} of {worker.of}" if worker else ""
    turn = Turn(worker.shared.profile if worker else None)
    return Profiler(f"torchlane {own_version()}{of}", turn.take, stopping)
