"""The operating system's side of a handler's process: its start, output, memory and end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from concurrent.futures import Executor
from contextlib import suppress
from typing import Protocol

from app.handlers.contract import HandlerSpec
from app.handlers.memory import memory_of
from app.handlers.output import Output
from app.handlers.spawn import spawn
from torchlane.handlers.launch import has_exited

REAP_S = 0.005  # between two looks whether a killed process has ended


class Owner(Protocol):
    """What the process belongs to."""

    def exceeded(self, memory_bytes: int) -> None:
        """It takes more memory than its limit."""

    def exited(self, code: int) -> None:
        """It has ended, with this exit code; negative: the signal that ended it."""

    def dropped_output(self, lines: int) -> None:
        """See `HandlerMetrics`."""


class Child:
    """A child process that leads a group of its own.

    Args:
        spec: of the handler.
        labels: fields of the lines that it prints, in the log.
        owner: is told what happens.
        measuring: runs what reads its memory.

    Attributes:
        memory_bytes: resident memory at the last look.
    """

    def __init__(
        self, spec: HandlerSpec, labels: dict[str, object], owner: Owner, measuring: Executor
    ) -> None:
        self.memory_bytes = 0
        self._spec = spec
        self._labels = labels
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._process: subprocess.Popen[bytes] | None = None
        self._outputs: list[Output] = []
        self._measuring = measuring
        self._is_measured = False  # at this moment

    def start(self) -> socket.socket:
        """Start it; returns this side of its connection.

        Raises:
            OSError: it cannot be started.
        """
        spawned = spawn(self._spec)
        self._process = spawned.process
        self._outputs = [
            Output(descriptor, {**self._labels, "stream": stream}, self._owner.dropped_output)
            for descriptor, stream in ((spawned.stdout, "stdout"), (spawned.stderr, "stderr"))
        ]
        return spawned.end

    @property
    def pid(self) -> int:
        """Of the process; 0 if it was not started."""
        return self._process.pid if self._process else 0

    @property
    def is_running(self) -> bool:
        """Whether it was started, and `Owner.exited` has not been called."""
        return self._process is not None and self._process.returncode is None

    @property
    def has_exited(self) -> bool:
        """Whether it has; its group still has its number, because it is not reaped here."""
        return not self.is_running or has_exited(self.pid)

    def measure(self) -> None:
        """Read its resident memory in a thread, unless that is being done."""
        if not self._is_measured:
            self._is_measured = True
            size = self._loop.run_in_executor(
                self._measuring, memory_of, self.pid, self._spec.memory_bytes
            )
            size.add_done_callback(self._measured)

    def kill(self) -> None:
        """Kill it with all that it started; harmless if it has ended."""
        if self.is_running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._reap()

    def close_outputs(self) -> None:
        """Log what it has printed, and close the pipes."""
        for output in self._outputs:
            output.close()

    def _reap(self) -> None:
        process = self._process
        if process is None or process.returncode is not None:
            return
        code = process.poll()
        if code is None:
            self._loop.call_later(REAP_S, self._reap)
        else:
            self._owner.exited(code)

    def _measured(self, measured: asyncio.Future[int]) -> None:
        self._is_measured = False
        if measured.cancelled() or measured.exception() is not None:
            return
        self.memory_bytes = measured.result()
        if self.is_running and self.memory_bytes > self._spec.memory_bytes:
            self._owner.exceeded(self.memory_bytes)
