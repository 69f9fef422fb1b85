"""What goes wrong around a server: its log, its TMPDIR, its models' files and its workers."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

from tests.artifacts import write_artifact
from tests.chaos.connection import Cut
from tests.chaos.scrape import Scrape, scrape
from tests.chaos.steady_caller import OTHER, STEADY, Scaled, SteadyCaller, factor_of
from tests.e2e.server import Server

LEAST_S = 1.0  # between two mishaps of a kind
NOTICED_S = 30.0
LOOK_S, WATCH_S = 1.0, 0.25
STOP_S = 20.0
READ_S = 0.05
ALL, SLOWLY, NOTHING = 1 << 20, 64, 0  # bytes of the log that are read each time
OVERWRITTEN = 500  # added to the factor of a version


class Mishaps:
    """What happens around a server.

    Args:
        server: that it happens to.
        workers: how many it has.
        pipe: its output.
        caller: asks meanwhile.
        rng: draws when each thing happens.
        pace: intervals are multiplied by it.
    """

    def __init__(
        self,
        server: Server,
        workers: int,
        pipe: int,
        caller: SteadyCaller,
        rng: random.Random,
        pace: float,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.memory: list[tuple[int, int]] = []  # of the parent and of the largest worker
        self.dropped = 0
        self._server, self._workers_wanted, self._pipe = server, workers, pipe
        self._folder = server.log_file.parent  # see `tests.chaos.mishaps`
        self._fills = os.path.ismount(self._folder / "tmp")  # else the machine's disk
        self._caller, self._tally = caller, caller.tally
        self._rng, self._pace = rng, pace
        self._newest = 1
        self._read_bytes = ALL

    async def run(self, seconds: float) -> tuple[int | None, float]:
        """Let everything happen at its own times while the caller asks, then stop the server.

        Returns:
            The exit code, None if it does not end; and the seconds that the stop took.
        """
        happen = (self._unread, self._fill, self._hide, self._change, self._kill)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read_log())
            tasks = [group.create_task(each()) for each in (*happen, self._look, self._watch)]
            await self._caller.run(seconds)
            for each in tasks:
                each.cancel()
            await self._caller.close()
            begun, code = time.monotonic(), None
            self._server.signal()
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = await asyncio.to_thread(self._server.exit_code, STOP_S)
            reading.cancel()
        return code, time.monotonic() - begun

    async def _read_log(self) -> None:
        """Read the log as fast as it is to be read now, and keep it."""
        with self._server.log_file.open("wb") as kept:
            try:
                while True:
                    await asyncio.sleep(READ_S)
                    kept.write(self._taken(self._read_bytes))
            finally:
                kept.write(self._taken(ALL))

    def _taken(self, most: int) -> bytes:
        with contextlib.suppress(BlockingIOError):
            return os.read(self._pipe, most)
        return b""

    async def _watch(self) -> None:
        while True:
            self._caller.starvation.look()
            await asyncio.sleep(WATCH_S)

    async def _unread(self) -> None:
        while True:
            await self._between(20, 60)
            try:
                with self._happens("the log is not read"):
                    self._read_bytes = NOTHING
                    await self._caller.fail(self._drawn(10, 30))
                with self._happens("the log is read slowly"):
                    self._read_bytes = SLOWLY
                    await self._between(10, 60)
            finally:
                self._read_bytes = ALL

    async def _fill(self) -> None:
        file = self._folder / "tmp/filler"
        while self._fills:
            await self._between(10, 40)
            with self._happens("TMPDIR is full"):
                await asyncio.to_thread(fill, file)
                await self._between(5, 30)
            file.unlink()

    async def _hide(self) -> None:
        """A link to a name that is too long cannot be read by any user."""
        model, away = self._folder / "models" / OTHER, self._folder / "away"
        name = "torchlane_model_folders_unreadable"
        while True:
            await self._between(20, 60)
            with self._happens("a model's folder is unreadable"):
                model.rename(away)
                model.symlink_to("x" * 300)
                await self._until(f"{name} above 0", lambda found: found.total(name) > 0)
                await self._between(5, 30)
            model.unlink()
            away.rename(model)
            await self._until(f"{name} of 0", lambda found: found.total(name) == 0)

    async def _change(self) -> None:
        """Overwrite the served version in place; then restore it or publish the next one."""
        served, name = self._folder / "models" / STEADY, "torchlane_versions_changed"
        while True:
            await self._between(20, 60)
            now = self._newest
            wrong = Scaled(factor_of(STEADY, now) + OVERWRITTEN)
            other = await asyncio.to_thread(
                write_artifact,
                self._folder / f"overwritten-{self.counts.total()}",
                STEADY,
                now,
                wrong,
            )
            with self._happens("a served version is overwritten"):
                copy_over(other, served / str(now))
                await self._until(f"{name} above 0", lambda found: found.total(name) > 0)
                await self._between(5, 30)
                if self._rng.random() < 0.5:
                    copy_over(self._folder / "good" / STEADY / str(now), served / str(now))
                else:
                    await self._publish()
                await self._until(f"{name} of 0", lambda found: found.total(name) == 0)

    async def _publish(self) -> None:
        new = self._newest + 1
        root = self._folder / "good"
        good = await asyncio.to_thread(
            write_artifact, root, STEADY, new, Scaled(factor_of(STEADY, new))
        )
        self._caller.versions.published(STEADY, new)
        draft = shutil.copytree(good, self._folder / "draft")
        draft.rename(self._folder / "models" / STEADY / str(new))
        self._newest = new
        self.counts["a version is published"] += 1
        await self._until(f"version {new} on both workers", self._is_complete)
        self._caller.versions.seen(STEADY, new)

    async def _kill(self) -> None:
        """One at a time: while a worker is replaced, the other one answers."""
        while self._workers_wanted > 1:
            await self._between(30, 90)
            while not self._is_complete(await self._scrape()):
                await asyncio.sleep(READ_S)
            with self._happens("a worker is killed"):
                self._tally.kills.append(time.monotonic())
                self._rng.choice(self._workers()).kill()
                await asyncio.sleep(LEAST_S)

    async def _look(self) -> None:
        """Watch the memory, and the counter of dropped lines."""
        while True:
            with contextlib.suppress(psutil.NoSuchProcess):
                workers = [each.memory_info().rss for each in self._workers()]
                parent = psutil.Process(self._server.process.pid).memory_info().rss
                self.memory.append((parent, max(workers, default=0)))
            dropped = (await self._scrape()).total("torchlane_log_lines_dropped_total")
            self.dropped = max(self.dropped, int(dropped))
            await asyncio.sleep(LOOK_S)

    def _workers(self) -> list[psutil.Process]:
        return psutil.Process(self._server.process.pid).children()

    def _is_complete(self, found: Scrape) -> bool:
        """Whether all workers serve what they should."""
        replicas = "torchlane_model_replicas"
        served = found.total(replicas, model=STEADY, version=str(self._newest))
        return min(served, found.total(replicas, model=OTHER)) >= self._workers_wanted

    async def _scrape(self) -> Scrape:
        while True:
            with contextlib.suppress(Cut, OSError):  # callers tell about it
                return await scrape([self._server])
            await asyncio.sleep(READ_S)

    async def _until(self, what: str, true: Callable[[Scrape], bool]) -> None:
        deadline = time.monotonic() + NOTICED_S
        while not true(await self._scrape()):
            if time.monotonic() > deadline:
                self._tally.problem("not noticed", f"no {what} within {NOTICED_S:g} s")
                return
            await asyncio.sleep(READ_S)

    def _drawn(self, least_s: float, most_s: float) -> float:
        return max(LEAST_S, self._rng.uniform(least_s, most_s) * self._pace)

    async def _between(self, least_s: float, most_s: float) -> None:
        await asyncio.sleep(self._drawn(least_s, most_s))

    @contextlib.contextmanager
    def _happens(self, what: str) -> Iterator[None]:
        self.counts[what] += 1
        self._caller.happening.append(what)
        try:
            yield
        finally:
            self._caller.happening.remove(what)


def fill(file: Path) -> None:
    """Write a file until its disk is full."""
    with file.open("wb", buffering=0) as filler:
        for size in (1 << 16, 1):
            try:
                while True:
                    filler.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise


def copy_over(source: Path, target: Path) -> None:
    """Write the files of one folder over those of another, as a job does that knows no versions."""
    for file in sorted(source.iterdir()):
        shutil.copyfile(file, target / file.name)
