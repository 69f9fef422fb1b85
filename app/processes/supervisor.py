"""The parent of several workers: starts, restarts and ends them, and accepts connections for all.

It runs no model and answers no request. This module does not import torch; if the workers are
forks, the parent has imported it for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from app.processes.acceptor import Acceptor, Recipient
from app.processes.fork import Fork, fork
from app.processes.news import News
from app.processes.shared_metrics import SupervisorMetrics
from app.processes.shared_values import forget_gauges
from app.processes.worker import (
    ALL_LOADED,
    CONNECTION,
    DRAIN,
    FULL,
    GRPC_CONNECTION,
    LISTENS,
    NOT_READY,
    PARTLY_READY,
    READY,
    ROOM,
    SIGNALS,
    ClosedConnections,
    Place,
    Shared,
)
from app.serving.claims import Claims
from models.system.command_lines import USAGE_EXIT_CODE

LOG = structlog.get_logger(__name__)
RESTART_DELAYS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)  # the last one repeats
STEADY_S = 60.0  # after a life of this length, a worker is restarted with the first delay
CLOSE_S = 10.0  # from the end of the drain budget until the remaining workers are killed
RETRY_S = 0.02  # before an order is sent again to a worker whose channel was full
REAP_S = 5.0  # maximum time from the end of a worker's channel to the end of its process


@dataclass(frozen=True, slots=True)
class WorkersPlan:
    """The workers that a supervisor runs.

    Attributes:
        command: command of a worker, which gets its place after `--worker`.
        environment: environment of a worker.
        workers: number of workers.
        drain_s: budget of a graceful stop.
        shared: files for this number of workers; closed by the caller.
    """

    command: Sequence[str]
    environment: dict[str, str]
    workers: int
    drain_s: float
    shared: Shared


class _Life(Recipient):
    """One life of a worker: its process, and its state as known to the parent."""

    def __init__(self, process: subprocess.Popen[bytes] | Fork, channel: socket.socket) -> None:
        super().__init__(channel)
        self.process = process
        self.began = time.monotonic()
        self.ended_by_us = False


class Supervisor:
    """Runs workers until a signal ends them, or until they cannot be restarted.

    Args:
        bound: a bound TCP socket; owned by the supervisor from now on.
        plan: the workers to run.
        dropped: returns how many lines this process's log has dropped.
        grpc: the same socket for gRPC, already listening; None: no gRPC.
    """

    def __init__(
        self,
        bound: socket.socket,
        plan: WorkersPlan,
        dropped: Callable[[], int],
        grpc: socket.socket | None = None,
    ) -> None:
        self._bound = bound
        self._grpc = grpc
        self._plan = plan
        self._dropped = dropped
        self._closed = ClosedConnections(plan.shared.connections, plan.workers)
        self._lives: dict[int, _Life] = {}
        self._deaths = [0] * plan.workers  # in a row
        self._news = News(plan.workers, self._replaces_another)
        self._all_loaded = False  # once, at the start
        self._announced = False  # that the server is ready
        self._stopping = False
        self._exit_code = 0

    def fork(self, serve: Callable[[Place], int]) -> None:
        """Start all workers as forks of this process; call this before an event loop runs.

        SIGTERM and SIGINT are blocked until `run` handles them. In a fork they are blocked until it
        ignores them (`obey_parent_alone`), since it inherits the parent's handlers.

        Args:
            serve: runs a worker and returns its exit code.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        for index in range(self._plan.workers):
            ours, theirs = socket.socketpair()
            others = (life.channel for life in self._lives.values())
            with theirs:
                place = self._place(index, theirs)
                unwanted = (*self._ports(), self._news.reading, ours, *others)
                process = fork(partial(serve, place), unwanted)
            self._lives[index] = _Life(process, ours)

    async def run(self) -> int:
        """Run until every worker has ended; returns the exit code."""
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        group: list[Acceptor] = []
        for bound, message in zip(self._ports(), (CONNECTION, GRPC_CONNECTION), strict=False):
            Acceptor(bound, self._plan.workers, self._lives, self._closed, message, group)
        self._acceptor = group[0]
        self._metrics = SupervisorMetrics(self._plan.shared.metrics[-1], self._dropped)
        self._loop.add_reader(self._news.reading, self._news.read)
        for number in SIGNALS:
            self._loop.add_signal_handler(number, self._signalled, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # blocked by `fork`
        try:
            for index in range(self._plan.workers):
                self._begin(index) if index in self._lives else self._start(index)
            return await self._ended
        finally:
            self._kill(self._lives.values())
            for life in self._lives.values():
                life.process.wait()
            self._loop.remove_reader(self._news.reading)
            self._news.read()  # the last words of workers that have ended
            self._news.close()
            self._metrics.close()

    def _ports(self) -> tuple[socket.socket, ...]:
        return (self._bound,) if self._grpc is None else (self._bound, self._grpc)

    # Starting and restarting workers.

    def _start(self, index: int) -> None:
        if self._stopping:
            return
        ours, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            process = subprocess.Popen(  # nosec B603 # this same program
                [*self._plan.command, "--worker", str(self._place(index, theirs))],
                env=self._plan.environment,
                pass_fds=[
                    theirs.fileno(),
                    self._news.writing.fileno(),
                    *self._plan.shared.descriptors(),
                ],
                process_group=0,  # Ctrl-C reaches only the parent
            )
            stack.pop_all()
        self._lives[index] = _Life(process, ours)
        self._begin(index)

    def _place(self, index: int, channel: socket.socket) -> Place:
        sockets = channel.fileno(), self._news.writing.fileno()
        return Place(index, self._plan.workers, os.getpid(), *sockets, self._plan.shared)

    def _begin(self, index: int) -> None:
        """Listen to a started worker."""
        life = self._lives[index]
        life.channel.setblocking(False)
        self._loop.add_reader(life.channel, self._heard, index)
        LOG.info("worker_started", worker=index, pid=life.process.pid)

    def _heard(self, index: int) -> None:
        life = self._lives[index]
        try:
            data = life.channel.recv(16)
        except BlockingIOError:
            return
        except ConnectionError:
            data = b""
        if not data:
            self._died(index, life)
            return
        for news in data:
            if news == LISTENS[0]:
                life.listens = True
                self._acceptor.resume()
                if self._all_loaded:
                    self._order(life, ALL_LOADED)
            elif news == FULL[0]:
                life.has_descriptors = False
            elif news == ROOM[0]:
                life.has_descriptors = True
                self._acceptor.resume()
            elif news in (READY[0], PARTLY_READY[0], NOT_READY[0]):
                life.loaded = True
                life.ready, life.complete = news != NOT_READY[0], news == READY[0]
                if self._all_loaded:
                    LOG.info("worker_loaded", worker=index, ready=life.ready)
                self._see_whether_all_loaded()
                self._announce()

    def _replaces_another(self, index: int) -> bool:
        """Whether a worker loads again what all have loaded."""
        life = self._lives.get(index)
        return self._all_loaded and life is not None and not life.loaded

    def _announce(self) -> None:
        """Log that the server is ready, once."""
        lives = self._lives.values()
        if self._announced or not self._all_loaded or not all(life.ready for life in lives):
            return
        self._announced = True
        self._news.read()  # what they have loaded comes first
        LOG.info("ready", workers=len(lives))

    def _see_whether_all_loaded(self) -> None:
        """Notify the workers once all living ones have loaded; none reports ready before that."""
        lives = self._lives
        if self._all_loaded or self._stopping or not lives:
            return
        if not all(life.loaded for life in lives.values()):
            return
        self._all_loaded = True
        for life in lives.values():
            self._order(life, ALL_LOADED)
        if unready := [index for index, life in lives.items() if not life.ready]:
            LOG.error("not_ready", workers=unready)

    def _died(self, index: int, life: _Life) -> None:
        """Clean up after a worker, whose channel closes only when its process ends."""
        self._loop.remove_reader(life.channel)
        self._loop.remove_writer(life.channel)
        life.channel.close()
        code = _exit_code(life.process)
        del self._lives[index]
        try:
            self._closed.put(index, 0)
            forget_gauges(self._plan.shared.metrics[index])
            Claims(self._plan.shared.claims, index).bury()
        except Exception:  # it must be replaced all the same
            LOG.exception("worker_not_cleaned_up", worker=index)
        if not self._stopping:
            self._replace(index, life, code)
            self._see_whether_all_loaded()
            self._announce()
        elif life.listens and not life.ended_by_us:  # before that it has lost nothing
            self._exit_code = self._exit_code or code
        if self._stopping and not self._lives:
            self._end(self._exit_code)

    def _replace(self, index: int, life: _Life, code: int) -> None:
        """Restart a worker, unless that would not help."""
        none_serves = not any(other.loaded for other in self._lives.values())
        if code == USAGE_EXIT_CODE or (not life.loaded and none_serves):
            self._news.read()  # says why
            LOG.error("worker_cannot_start", worker=index, exit_code=code)
            self._exit_code = code or 1
            self._stop()
            return
        if time.monotonic() - life.began > STEADY_S:
            self._deaths[index] = 0
        delay_s = RESTART_DELAYS_S[min(self._deaths[index], len(RESTART_DELAYS_S) - 1)]
        self._deaths[index] += 1
        LOG.error("worker_died", worker=index, exit_code=code, restart_in_s=delay_s)
        self._loop.call_later(delay_s, self._restart, index)

    def _restart(self, index: int) -> None:
        """Start a worker again; retry if the system has no process or descriptor for it."""
        try:
            self._start(index)
        except OSError as error:
            delay_s, why = RESTART_DELAYS_S[-1], error.strerror
            LOG.error("worker_not_started", worker=index, reason=why, restart_in_s=delay_s)
            self._loop.call_later(delay_s, self._restart, index)

    # Stopping.

    def _signalled(self, number: signal.Signals) -> None:
        if self._stopping:
            self._kill(self._lives.values())
            self._end(128 + number)
            return
        LOG.info("draining", signal=number.name, budget_s=self._plan.drain_s)
        self._stop()

    def _stop(self) -> None:
        """Accept no more connections; drain serving workers, and kill the others."""
        self._stopping = True
        self._draining = self._loop.create_task(self._drain())

    async def _drain(self) -> None:
        try:
            await self._acceptor.close()
        finally:
            self._closed.stop()
            self._kill([life for life in self._lives.values() if not life.listens])
            for life in self._lives.values():
                self._order(life, DRAIN)
            self._loop.call_later(self._plan.drain_s + CLOSE_S, self._overdue)
            if not self._lives:
                self._end(self._exit_code)

    def _order(self, life: _Life, order: bytes) -> None:
        try:
            life.channel.send(order)
        except BlockingIOError:  # full of connections
            self._loop.call_later(RETRY_S, self._order, life, order)
        except OSError:
            pass  # the worker has died; `_heard` notices

    def _overdue(self) -> None:
        LOG.error("workers_stuck", workers=list(self._lives))
        self._exit_code = self._exit_code or 1
        self._kill(self._lives.values())

    def _kill(self, lives: Iterable[_Life]) -> None:
        for life in lives:
            life.ended_by_us = True
            life.process.kill()

    def _end(self, code: int) -> None:
        if not self._ended.done():
            LOG.info("stopped")
            self._ended.set_result(code)


def _exit_code(process: subprocess.Popen[bytes] | Fork) -> int:
    """The exit code as a shell reports it: 128 plus the signal, if one ended the process."""
    try:
        code = process.wait(REAP_S)
    except subprocess.TimeoutExpired:  # the process closed its channel but still runs
        process.kill()
        code = process.wait()
    return code if code >= 0 else 128 - code
