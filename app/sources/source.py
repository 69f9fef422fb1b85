"""Keeps the mirror of a store up to date while a server runs, in a thread with low priority.

One process of the machine looks at the store for each mirror; the others read what it wrote, and
one of them takes over when it ends.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import random
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import structlog

from app.sources.cache import Cache
from app.sources.looking import Looking
from app.sources.mirror import Mirror
from app.sources.repository import MirroredRepository
from app.sources.state import State
from app.sources.wants import OwnWants, Wants
from app.threads import in_thread, lower_priority
from app.types import ModelId
from models.integrity import Verifier
from models.stores.choose import open_store
from models.stores.errors import StoreError
from models.stores.urls import StoreUrl

LOG = structlog.get_logger(__name__)
TICK_S = 0.25  # between checks whether a look is due or was asked for
FIRST_S = 5.0  # between looks until one succeeds, if they are otherwise rarer
WARM_S = 10.0  # a start waits so long for the store if the mirror has models
ASKED_S = 60.0  # a request of an administrator waits so long
JITTER = 0.2
GONE_S = 5.0  # the least time for which listings must lack a version that then goes
CLOSE_S = 5.0


@dataclass(frozen=True, slots=True)
class SourceConfig:
    """Configuration of a source.

    Attributes:
        url: of the repository in the store.
        cache: folder of the cache.
        cache_bytes: the most bytes in it.
        cache_setting: name of the setting with that limit, for messages.
        poll_s: seconds between two looks; 0: only on request.
        policy: TORCHLANE_VERSIONS.
        models: the only models that are wanted; None: all.
        whose: see `Mirror`.
    """

    url: StoreUrl
    cache: Path
    cache_bytes: int
    cache_setting: str
    poll_s: float
    policy: str
    models: tuple[str, ...] | None = None
    whose: str = ""


class Source:
    """A store whose versions this process serves from a mirror.

    Args:
        config: see `SourceConfig`.
        verifier: checks signatures; None: nothing is checked.

    Raises:
        OSError: if the cache cannot be written.

    Attributes:
        repository: the mirror.
    """

    def __init__(self, config: SourceConfig, verifier: Verifier | None) -> None:
        self._config = config
        self._verifier = verifier
        self._cache = Cache(config.cache, config.cache_bytes, config.cache_setting)
        self._mirror = Mirror(config.cache, config.url, config.whose)
        self._mirror.create()
        self.repository = MirroredRepository(
            self._mirror, verifier, self._use, self._mirror.report_damaged
        )
        self._own_wants: OwnWants | None = None
        self._needed: frozenset[str] = frozenset()
        self._changing = threading.Lock()  # of what is needed
        self._began_at = time.time()
        self._first = 0  # the ticket of the first look
        self._warm_until = 0.0  # moment of time.monotonic
        self._told: str | None = None  # the problem that was logged
        self._failed: str | None = None  # the unexpected error that was logged
        self._thread = threading.Thread(target=self._run, name="source", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._closed = False
        self._seen = State()  # as the thread last read it, for the event loop

    @property
    def shown(self) -> str:
        """The URL, for logs."""
        return str(self._config.url)

    def start(self, wait_s: float = 0.0) -> None:
        """Begin to keep the mirror up to date.

        Args:
            wait_s: the longest wait for the first look, in seconds; blocks meanwhile.

        Raises:
            OSError: if the mirror cannot be written.
        """
        self._own_wants = OwnWants(self._mirror.wants)
        self._put_wants()
        self._first = self._mirror.ask()
        self._thread.start()
        atexit.register(self._end)  # before the interpreter ends under the library's threads
        began = time.monotonic()
        self._warm_until = began + WARM_S
        while self._seen.ticket < self._first and time.monotonic() < began + wait_s:
            time.sleep(TICK_S / 5)

    async def first(self) -> None:
        """Wait for the first look: as long as it takes if the mirror is empty, else not for long.

        A look ends, also if the store does not answer.
        """
        warm = await in_thread(self._mirror.has_versions)
        await self._wait(
            self._first, max(0.0, self._warm_until - time.monotonic()) if warm else None
        )
        if (self._seen.succeeded_at or 0.0) < self._began_at:
            serves = "what the cache has" if warm else "nothing yet"
            problem = self._seen.problem or "it has not answered yet"
            LOG.warning("source_not_seen", url=self.shown, serves=serves, problem=problem)

    async def fetch(self, versions: Collection[ModelId]) -> None:
        """For a program that is no server: begin, and wait for the first look.

        Args:
            versions: see `need`.

        Raises:
            OSError: if the mirror cannot be written.
        """
        await self.need(versions)
        await in_thread(self.start)
        await self.first()

    async def refresh(self, limit_s: float | None = ASKED_S) -> None:
        """Look at the store now, and wait until that has ended, or for a time.

        Args:
            limit_s: the longest wait in seconds; None: no limit.
        """
        await self._wait(await in_thread(self._mirror.ask), limit_s)

    async def _wait(self, ticket: int, limit_s: float | None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                while self._seen.ticket < ticket:  # noqa: ASYNC110 # another thread sees it
                    await asyncio.sleep(TICK_S / 5)

    async def need(self, versions: Collection[ModelId]) -> None:
        """Replace the versions that this process needs in addition to its policy."""
        needed = frozenset(map(str, versions))
        await in_thread(lambda: self._need(needed))

    def _need(self, needed: frozenset[str]) -> None:
        with self._changing:
            added, self._needed = needed - self._needed, needed
            self._put_wants()
        if added - self._mirror.state.read().versions.keys():
            self._first = self._mirror.ask()

    def why_empty(self) -> str:
        """Why there are no models."""
        if self._seen.ticket < self._first:
            return f"models are being fetched from {self.shown}"
        return self._seen.why_empty(self._config.url)

    def age_s(self) -> float:
        """Seconds since the last look that saw everything, or since the start."""
        seen_at = self._seen.succeeded_at
        return max(0.0, time.time() - (self._began_at if seen_at is None else seen_at))

    async def close(self) -> None:
        """Stop looking; what has arrived of a download stays for the next start."""
        await in_thread(self._end)

    def _end(self) -> None:
        self._closed = True
        if self._loop is not None and self._keeping is not None:
            with contextlib.suppress(RuntimeError):  # it has ended
                self._loop.call_soon_threadsafe(self._keeping.cancel)
        if self._thread.is_alive():
            self._thread.join(CLOSE_S)
        with self._changing:
            if self._own_wants is not None:
                self._own_wants.close()
            self._own_wants = None
        atexit.unregister(self._end)

    def _use(self, model: ModelId) -> None:
        """Keep the files of a version as they are, from before they are read."""
        with self._changing:
            if str(model) not in self._needed:
                self._needed |= {str(model)}
                self._put_wants()

    def _put_wants(self) -> None:
        if self._own_wants is not None:
            with contextlib.suppress(OSError):  # a full disk: the earlier wants stay
                self._own_wants.put(
                    Wants(
                        policy=self._config.policy,
                        models=self._config.models,
                        versions=self._needed,
                    )
                )

    # In the thread.

    def _run(self) -> None:
        lower_priority()
        with contextlib.suppress(asyncio.CancelledError):
            asyncio.run(self._keep())

    async def _keep(self) -> None:
        self._loop, self._keeping = asyncio.get_running_loop(), asyncio.current_task()
        while not self._closed:
            try:
                with contextlib.suppress(BlockingIOError), self._mirror.kept():
                    await self._hold()
            except Exception as error:  # it is tried again: what is served does not depend on it
                self._log_failed(error)
                await asyncio.sleep(self._pause_s(has_seen=False))
            self._seen = self._mirror.state.read()
            await asyncio.sleep(TICK_S)

    async def _hold(self) -> None:
        """Look at the store when it is due or asked for, for as long as this process lives."""
        self._seen, looking = self._mirror.state.read(), None
        due_at = 0.0 if self._config.poll_s else float("inf")
        while not self._closed:
            asked = self._mirror.asked()
            if asked > self._seen.ticket or time.monotonic() >= due_at:
                try:
                    looking = looking or self._looking()
                    self._seen = await looking.look(asked)
                    self._failed = None
                except Exception as error:  # the next look may succeed
                    self._seen = self._failed_look(asked, error)
                self._tell(self._seen.problem)
                has_seen = self._seen.succeeded_at is not None
                due_at = time.monotonic() + self._pause_s(has_seen=has_seen)
            await asyncio.sleep(TICK_S)

    def _looking(self) -> Looking:
        """What looks at the store.

        Raises:
            StoreError: if the store's tools have no usable configuration.
        """
        store = open_store(self._config.url)
        gone_after_s = max(GONE_S, self._config.poll_s / 2)
        return Looking(store, self._mirror, self._cache, self._verifier, gone_after_s)

    def _log_failed(self, error: Exception) -> None:
        """Log an error that nobody expected, once."""
        if repr(error) != self._failed:
            LOG.error("source_failed", url=self.shown, exc_info=error)
        self._failed = repr(error)

    def _failed_look(self, ticket: int, error: Exception) -> State:
        """The state after a look that could not end, which other processes also get to know."""
        problem = str(error)
        if isinstance(error, OSError):
            problem = f"the cache {self._config.cache} cannot be used: {error.strerror}"
        elif not isinstance(error, StoreError):
            self._log_failed(error)
            problem = f"an unexpected error, which the log has: {type(error).__name__}"
        state = self._mirror.state.read().model_copy(update={"ticket": ticket, "problem": problem})
        with contextlib.suppress(OSError):
            self._mirror.state.write(state)
        return state

    def _pause_s(self, *, has_seen: bool) -> float:
        pause_s = self._config.poll_s or float("inf")
        if not has_seen:
            pause_s = min(pause_s, FIRST_S)
        return pause_s * random.uniform(1 - JITTER, 1 + JITTER)  # nosec B311 # no secret

    def _tell(self, problem: str | None) -> None:
        """Log once that the store cannot be read, and once that it can again."""
        if problem is not None and problem != self._told:
            LOG.error("source_unreachable", url=self.shown, problem=problem)
        elif problem is None and self._told is not None:
            LOG.info("source_reachable", url=self.shown)
        self._told = problem
