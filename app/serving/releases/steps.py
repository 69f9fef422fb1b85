"""Releases: steps to a new version, and back if it fails more or is slower than the old one.

One worker of a server, the judge, compares the two versions by the metrics of all workers, and
writes each change to a file that all of them read. Which version a request gets is decided in
`app.registry.releases`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal, TypeAlias

import structlog

from app.errors import InvalidInput, ModelNotFound, NotSaved
from app.metrics import Metrics
from app.registry.loaded_models import LoadedModels
from app.registry.releases import (
    ACTIVE,
    WHOLE,
    Phase,
    Release,
    Stage,
    old_version,
    why_it_waits,
)
from app.serving.releases.file import ReleaseFile, ReleaseFileError, Stages
from app.serving.releases.judge import AllCounts, Judge, counts_of
from app.shared_file import SharedFile
from app.threads import in_thread
from app.types import ModelId

LOG = structlog.get_logger(__name__)
WAIT_S = 60.0  # before a release that waits for a version is logged
LOOK_S = 1.0  # between two looks: workers write their counts once a second
Action: TypeAlias = Literal["pause", "resume", "rollback"]
POSSIBLE: Mapping[Action, tuple[Phase, ...]] = {
    "pause": (Phase.RUNNING,),
    "resume": (Phase.PAUSED, Phase.ROLLED_BACK),
    "rollback": (Phase.RUNNING, Phase.PAUSED, Phase.COMPLETED),
}
Changes: TypeAlias = Mapping[str, tuple[Stage | None, Stage | None]]  # by model, before and after


class Releases:
    """Moves the releases of a server on.

    Args:
        loaded: which versions are served; gets the stages.
        wanted: returns the releases of the models file, by model.
        works: whether a served version can run now.
        file: where the stages are kept; None without a models file.
        metrics: of the server.
        judging: locked by the worker that judges; None if there is only one process.
        has_room: whether a version is loaded, or there is room to load it on demand.
        clock: monotonic seconds.
        now: seconds since 1970.
    """

    def __init__(
        self,
        loaded: LoadedModels,
        wanted: Callable[[], Mapping[str, Release]],
        works: Callable[[ModelId], bool],
        file: ReleaseFile | None,
        metrics: Metrics,
        judging: SharedFile | None = None,
        *,
        has_room: Callable[[ModelId], bool],
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._loaded = loaded
        self._wanted = wanted
        self._works = works
        self._has_room = has_room
        self._file = file
        self._metrics = metrics
        self._judging = judging
        self._clock, self._now = clock, now
        self._judge = Judge(clock, now)
        self._is_judge = judging is None
        self._lock = contextlib.ExitStack()  # of the judge
        self._stages: Stages = {}
        self._waiting: dict[tuple[str, str], float] = {}  # models, why they wait, since when
        self._logged: set[tuple[str, str]] = set()  # of these, those that were logged
        self._problem: str | None = None  # with the file, as logged

    def start(self) -> None:
        """Read the stages, before any version is served."""
        if self._file is not None:
            try:
                self._take(self._file.read())
            except (OSError, ReleaseFileError) as error:
                self._pause(error)

    def close(self) -> None:
        """Let another worker judge."""
        self._lock.close()

    async def follow(self, look_s: float = LOOK_S) -> None:
        """Look again and again, until it is cancelled."""
        failure: str | None = None
        while True:
            await asyncio.sleep(look_s)
            try:
                await self.look()
                failure = None
            except Exception as error:  # the next look may succeed
                if repr(error) != failure:
                    LOG.error("releases_look_failed", exc_info=error)
                failure = repr(error)

    async def look(self) -> None:
        """Take over what others have changed; the judge then judges all releases."""
        if self._file is None or not (self._wanted() or self._stages):
            return
        try:
            self._take(await in_thread(self._file.read))
            if self._may_judge() and (changes := await self._changes()):
                change = partial(self._file.change, partial(_with, changes))
                self._take(await in_thread(change))
                for name, (_, stage) in changes.items():
                    if stage is not None and self._stages.get(name) == stage:
                        _log(name, stage)
        except (OSError, ReleaseFileError) as error:
            self._pause(error)
        else:
            self._problem = None

    async def act(self, name: str, action: Action) -> None:
        """Pause, resume or roll back the release of a model, for all workers.

        Raises:
            ModelNotFound: if there is no such model.
            InvalidInput: if it has no release, or one that cannot do this now.
            NotSaved: if the change cannot be written.
        """
        if name not in self._loaded.names:
            raise ModelNotFound(f"there is no model {name!r}; GET /models lists all models")
        release = self._wanted().get(name)
        if self._file is None or release is None:
            raise InvalidInput(f"the models file has no release of {name!r}")
        change = partial(_after_action, name, release, action, self._now())
        try:
            self._take(await in_thread(partial(self._file.change, change)))
        except (OSError, ReleaseFileError) as error:
            raise NotSaved(f"the release of {name!r} did not change: {_told(error)}") from error
        _log(name, self._stages[name])

    def of(self, name: str) -> Release | None:
        """The release of a model in the models file; None if it has none."""
        return self._wanted().get(name)

    def problem(self, name: str) -> str | None:
        """Why the release of a model does not go on; None: it does, or it has ended."""
        release, stage = self._wanted().get(name), self._stages.get(name)
        if release is None or _has_ended(release, stage):
            return None
        return self._why_it_waits(name, release) or self._problem

    def _served(self, name: str) -> list[int]:
        """The served versions that requests can be divided between: those of one kind."""
        return self._loaded.divided(name)

    def _why_it_waits(self, name: str, release: Release) -> str | None:
        """Why a release does not go on with the versions that are served now; None: it can."""
        stage, served = self._stages.get(name), self._served(name)
        if release.to not in served and self._loaded.serves(ModelId(name, release.to)):
            return (
                f"the release waits: version {release.to} is a handler and the others are models, "
                "or the other way round"
            )
        problem = why_it_waits(release, stage, served)
        if problem is None and not self._has_room(ModelId(name, release.to)):
            problem = (
                f"the release waits: there is no room to load version {release.to} on demand; "
                "TORCHLANE_MODEL_MEMORY limits the memory of models"
            )
        if problem is not None or release.stop_if.agreement_below is None:
            return problem
        old = old_version(release, stage, [each for each in served if each != release.to])
        before, after = (self._loaded.find(ModelId(name, each)) for each in (old, release.to))
        if before is None or after is None or before.reads_as(after):
            return None
        return (
            f"the release waits: version {release.to} reads its inputs in another way than version "
            f"{old}, so agreement_below cannot be judged; leave it out"
        )

    def _take(self, stages: Stages) -> None:
        """Divide requests by these stages."""
        share, rolled_back = self._metrics.release_share, self._metrics.release_rolled_back
        earlier = ((name, stage.release) for name, stage in self._stages.items())
        for name, release in (*self._wanted().items(), *earlier):
            share.labels(name, str(release.to)).set(0)
            rolled_back.labels(name, str(release.to)).set(0)
        for name, stage in stages.items():
            follower = self._wanted().get(name)  # has the same version, unless it has not begun
            percent = stage.percent if follower and follower.to == stage.release.to else 0.0
            share.labels(name, str(stage.release.to)).set(percent / WHOLE)
            is_rolled_back = stage.phase is Phase.ROLLED_BACK
            rolled_back.labels(name, str(stage.release.to)).set(float(is_rolled_back))
        self._stages = stages
        self._loaded.set_stages(stages)

    def _may_judge(self) -> bool:
        if not self._is_judge and self._judging is not None:
            with contextlib.suppress(BlockingIOError):  # another worker judges
                self._lock.enter_context(self._judging.locked(waits=False))
                self._is_judge = True
        return self._is_judge

    async def _changes(self) -> Changes:
        wanted = self._wanted()
        self._log_waiting(wanted)
        counts: AllCounts = {}
        if any(stage.phase in ACTIVE for stage in self._stages.values()):
            counts = await self._metrics.read(partial(counts_of, wanted.keys()))
        changes: dict[str, tuple[Stage | None, Stage | None]] = {}
        for name in {**self._stages, **wanted}:
            before, release = self._stages.get(name), wanted.get(name)
            after = None
            if release is not None:
                waits = self._why_it_waits(name, release) is not None
                served = [] if waits else self._served(name)
                after = self._judge.next_stage(name, release, before, served, counts, self._works)
            if after != before:
                changes[name] = before, after
        return changes

    def _log_waiting(self, wanted: Mapping[str, Release]) -> None:
        """Log which releases cannot go on, once each, unless their versions come soon."""
        before, self._waiting = self._waiting, {}
        for name, release in wanted.items():
            stage, problem = self._stages.get(name), self._why_it_waits(name, release)
            if problem is None or _has_ended(release, stage):
                continue
            key = name, problem
            self._waiting[key] = before.get(key, self._clock())
            if self._clock() - self._waiting[key] >= WAIT_S and key not in self._logged:
                self._logged.add(key)
                LOG.warning("release_waits", model=name, problem=problem)
        self._logged &= self._waiting.keys()

    def _pause(self, error: OSError | ReleaseFileError) -> None:
        """All versions keep their shares until the file can be used; logged once."""
        problem = f"releases are paused: {_told(error)}"
        if problem != self._problem:
            LOG.error("release_state_unusable", problem=problem)
        self._problem = problem


def _has_ended(release: Release, stage: Stage | None) -> bool:
    return stage is not None and stage.release == release and stage.phase not in ACTIVE


def _with(changes: Changes, stages: Stages) -> Stages:
    """The stages after these changes, except where another process was faster."""
    valid = {name: after for name, (before, after) in changes.items() if stages.get(name) == before}
    return {name: stage for name, stage in {**stages, **valid}.items() if stage is not None}


def _after_action(
    name: str, release: Release, action: Action, now: float, stages: Stages
) -> Stages:
    """The stages after an administrator's action.

    Raises:
        InvalidInput: if the release has not begun, or cannot do this now.
    """
    stage = stages.get(name)
    if stage is None or stage.release != release:
        raise InvalidInput(f"the release of {name!r} has not begun; GET /models/{name} says why")
    if stage.phase not in POSSIBLE[action]:
        raise InvalidInput(
            f"the release of {name!r} is {stage.phase}: {action} is not possible now"
        )
    if action == "pause":
        after = stage.changed(now, phase=Phase.PAUSED)
    elif action == "rollback":
        after = stage.changed(now, phase=Phase.ROLLED_BACK, reason="an administrator asked for it")
    else:  # one that was rolled back begins again
        step = stage.step if stage.phase is Phase.PAUSED else 0
        after = stage.changed(now, phase=Phase.RUNNING, step=step, reason=None)
    return {**stages, name: after}


def _log(name: str, stage: Stage) -> None:
    log = LOG.bind(model=name, version=stage.release.to, old=stage.old)
    match stage.phase:
        case Phase.RUNNING:
            step = f"{stage.step + 1} of {len(stage.release.steps)}"
            log.info("release_step", step=step, percent=stage.percent)
        case Phase.PAUSED:
            log.info("release_paused", percent=stage.percent)
        case Phase.ROLLED_BACK:
            log.error("release_rolled_back", reason=stage.reason)
        case Phase.COMPLETED:
            log.info("release_completed")


def _told(error: OSError | ReleaseFileError) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
