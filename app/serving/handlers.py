"""Installs handlers: unpack, start processes, replay examples; and ends them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import pwd
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal, TypeAlias

import structlog

from app.codecs.declared import DeclaredTensors
from app.errors import ArtifactInvalid, HandlerFailed, TorchlaneError
from app.handlers.contract import HandlerAnswer, HandlerPool, HandlerRequest, HandlerSpec
from app.metrics import Metrics
from app.metrics.gauges import ModelGauges
from app.metrics.handlers import HandlerCounts
from app.registry.loaded_models import LoadedHandler, LoadedModels
from app.registry.model_settings import ModelSettings
from app.registry.repository import HandlerArtifact
from app.threads import in_thread
from app.types import ModelId
from models.handlers import CODE_FILE, HandlerExample, HandlerManifest, is_same_answer, unpack_code
from models.system.archive import ArchiveError
from models.system.scratch import scratch_folder

LOG = structlog.get_logger(__name__)
Mode: TypeAlias = Literal["off", "on", "signed"]
# Of its calls, each name with the version that it must have; `main` passes it in.
PoolFactory: TypeAlias = Callable[[HandlerSpec, Mapping[str, int], HandlerCounts], HandlerPool]
PREFIX = "torchlane-handler-"
SHOWN = 300  # characters of an answer in a problem
STREAMS_S = 600.0  # for the open streams of a version that is replaced or removed


class SettingsForbid(ArtifactInvalid):
    """The settings allow no handler, or do not fit the kind of the artifact."""


class ModelsMissing(ArtifactInvalid):
    """A model that the handler calls is not served; it may be later."""


class HandlerInstaller:
    """Starts and ends handlers.

    Args:
        mode: which handlers may run.
        metrics: of the server.
        make_pool: makes the processes of a handler; None if no handler may run.
    """

    def __init__(self, mode: Mode, metrics: Metrics, make_pool: PoolFactory | None) -> None:
        self._mode = mode
        self._metrics = metrics
        self._make_pool = make_pool
        # Also of versions that were replaced, until they have answered.
        self._running: dict[HandlerPool, contextlib.ExitStack] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def start(
        self,
        model: ModelId,
        artifact: HandlerArtifact,
        settings: ModelSettings,
        loaded: LoadedModels,
        step: Callable[[str, str], None],
    ) -> LoadedHandler:
        """Start a handler that has passed its examples.

        Args:
            model: the version, with the revision to install.
            artifact: of the version.
            settings: of the handler.
            loaded: the served models.
            step: is told each stage, and what happens in it.

        Raises:
            SettingsForbid: if no handler may run, or it is not signed.
            ModelsMissing: if a model that it calls is not served.
            ArtifactInvalid: if it cannot be started, or an example fails.
        """
        manifest, make_pool = artifact.manifest, self._make_pool
        if make_pool is None:
            raise SettingsForbid("refused: TORCHLANE_HANDLERS is off")
        if self._mode == "signed" and artifact.signed_by is None:
            raise SettingsForbid("refused: TORCHLANE_HANDLERS is signed, and it has no signature")
        if (misplaced := settings.misplaced(in_handler=True)) is not None:
            raise SettingsForbid(misplaced)
        if settings.user is not None and (problem := _cannot_run_as(settings.user)) is not None:
            raise SettingsForbid(f"the models file sets user: {problem}")
        if (circle := _circle(manifest, loaded.handlers())) is not None:
            raise ArtifactInvalid(f"the handlers call each other in a circle: {circle}")
        missing = loaded.missing(manifest)
        if missing is not None:
            raise ModelsMissing(missing)
        step("load", "starting its processes")
        with contextlib.ExitStack() as stack:
            folder = await in_thread(lambda: _unpacked(artifact, settings.user, stack))
            versions = {each.name: each.version for each in manifest.models if each.version}
            counts = HandlerCounts(self._metrics, model)
            spec = _spec(manifest, settings, folder)
            pool = make_pool(spec, versions, counts)
            try:
                await pool.start()
            except HandlerFailed as error:
                raise ArtifactInvalid(str(error)) from error
            try:
                step("prove", "replaying examples")
                for index, example in enumerate(manifest.golden):
                    await _replay(index, example, artifact, pool, settings.timeout_s)
            except BaseException:
                await pool.close()
                raise
            self._running[pool] = stack.pop_all()
        self._metrics.add_model(model, _gauges(pool))
        by = artifact.signed_by
        tensors = DeclaredTensors(manifest.inputs, manifest.outputs) if manifest.inputs else None
        return LoadedHandler(model, manifest, pool, by, settings, artifact.digest, tensors)

    def adjust(self, handler: LoadedHandler, settings: ModelSettings, loaded: LoadedModels) -> None:
        """Apply at once those new settings that need no new processes."""
        if settings.misplaced(in_handler=True) is not None:
            return  # the next check reports it
        settings = settings.installed_as(handler.settings)
        if settings != handler.settings:
            handler.pool.queue_limit = queue_limit(handler.manifest, settings)
            loaded.change_handler(dataclasses.replace(handler, settings=settings))
            LOG.info("handler_settings_changed", handler=str(handler.id))

    async def end(self, handler: LoadedHandler, *, replaced: bool = False) -> None:
        """Answer the requests that a handler accepted, then end its processes.

        Streams that are still open after the time of a request end later, in the background.

        Args:
            handler: gets no more requests.
            replaced: whether another revision of the version serves.
        """
        ending = asyncio.create_task(self._end_open(handler.pool))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        done, _ = await asyncio.wait([ending], timeout=handler.settings.timeout_s)
        for each in done:
            each.result()
        if not replaced:
            self._metrics.remove_model(handler.id)

    async def drain(self, budget_s: float) -> None:
        """Accept no more requests for any handler, and wait for the open ones."""
        await asyncio.gather(*(pool.drain(budget_s) for pool in self._running))

    async def _end_open(self, pool: HandlerPool) -> None:
        await pool.drain(STREAMS_S)
        await self._close(pool)

    async def stop(self) -> None:
        """End all processes."""
        for ending in self._ending:
            ending.cancel()
        await asyncio.gather(*map(self._close, [*self._running]))

    async def _close(self, pool: HandlerPool) -> None:
        """End the processes of a handler now."""
        await pool.close()
        stack = self._running.pop(pool, None)
        if stack is not None:
            await in_thread(stack.close)


def _cannot_run_as(user: str) -> str | None:
    """Why processes of this server cannot run as a user; None: they can."""
    try:
        number = pwd.getpwnam(user).pw_uid
    except KeyError:
        return f"this machine has no user {user!r}"
    if os.geteuid() not in (0, number):
        return f"only a server that runs as root can start processes as {user!r}"
    return None


def _unpacked(artifact: HandlerArtifact, user: str | None, stack: contextlib.ExitStack) -> Path:
    """A folder with the handler's files, exactly those that were digested, which is its user's."""
    try:
        folder = stack.enter_context(scratch_folder(PREFIX, Path(tempfile.gettempdir())))
        unpack_code(artifact.read(CODE_FILE), folder)
        if user is not None:
            for path in (folder, *folder.rglob("*")):
                shutil.chown(path, user)
    except (ArchiveError, OSError) as error:
        raise ArtifactInvalid(f"{artifact.id}: {error}") from error
    return folder


def queue_limit(manifest: HandlerManifest, settings: ModelSettings) -> int:
    """The most requests that may wait: the models file overrides the artifact."""
    is_set = "queue_limit_items" in settings.set_by_file
    return settings.queue_limit_items if is_set else manifest.limits.queue_limit


def _spec(manifest: HandlerManifest, settings: ModelSettings, folder: Path) -> HandlerSpec:
    limits = manifest.limits
    return HandlerSpec(
        name=manifest.model,
        version=manifest.version,
        folder=folder,
        entry=manifest.entry,
        python=settings.python or sys.executable,
        models=tuple(each.name for each in manifest.models),
        max_batch_size=limits.max_batch_size,
        processes=settings.processes or limits.processes,
        concurrency=limits.concurrency,
        seconds=limits.seconds,
        memory_bytes=limits.memory_bytes,
        queue_limit=queue_limit(manifest, settings),
        streams=manifest.streams,
        user=settings.user,
    )


async def _replay(
    index: int,
    example: HandlerExample,
    artifact: HandlerArtifact,
    pool: HandlerPool,
    timeout_s: float,
) -> None:
    """Send an example through the served models, and compare its answer.

    Raises:
        ArtifactInvalid: if it differs.
    """
    what = f"its example {index}"
    request, expected = await in_thread(
        lambda: (artifact.read(example.request), artifact.read(example.answer))
    )
    deadline = time.monotonic() + timeout_s
    try:
        (job,) = pool.submit(
            [HandlerRequest(example.media_type, "", request, f"example-{index}", "", {}, deadline)]
        )
        ended = asyncio.get_running_loop().create_future()
        if not job.is_settled:
            job.when_settled(lambda: None if ended.done() else ended.set_result(None))
            await ended
        answer = job.result()
    except TorchlaneError as error:
        reason = f" ({error.reason})" if isinstance(error, HandlerFailed) and error.reason else ""
        raise ArtifactInvalid(f"{what} failed: {error}{reason}") from error
    got = (answer.status, answer.media_type)
    if got != (example.status, example.answer_type):
        raise ArtifactInvalid(
            f"{what} got {got[0]} {got[1]}, at export {example.status} {example.answer_type}"
        )
    if not is_same_answer(expected, answer.body, answer.media_type):
        raise ArtifactInvalid(f"{what} got another answer than at export: {_short(answer)}")


def _short(answer: HandlerAnswer) -> str:
    return answer.body[:SHOWN].decode("utf-8", "replace")


def _circle(manifest: HandlerManifest, others: Iterable[LoadedHandler]) -> str | None:
    """The handlers that call each other in a circle with this one, if they do."""
    calls = {each.id.name: [m.name for m in each.manifest.models] for each in others}
    calls[manifest.model] = [each.name for each in manifest.models]
    paths = [[manifest.model]]
    seen: set[str] = set()
    while paths:
        path = paths.pop()
        for name in calls.get(path[-1], ()):
            if name == manifest.model:
                return " -> ".join((*path, name))
            if name not in seen:
                seen.add(name)
                paths.append([*path, name])
    return None


def _gauges(pool: HandlerPool) -> ModelGauges[Callable[[], float]]:
    """The gauges of a handler: those of a model, of which its processes are the replicas."""
    return ModelGauges(
        waiting=lambda: pool.load().queued,
        queue_limit=lambda: pool.queue_limit,
        replicas=lambda: pool.load().processes,
        waiting_bytes=lambda: 0,
        queue_limit_bytes=lambda: 0,
        predicted_wait_s=lambda: 0,
        cold=lambda: 0,
    )
