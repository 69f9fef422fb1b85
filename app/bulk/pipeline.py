"""The stages of a run, each in its own threads: read and decode, compute, write."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeAlias

from app.bulk.answers import Answers
from app.bulk.blocks import Block
from app.bulk.model import BulkModel
from app.bulk.scoring import Scorer
from app.errors import Abandoned

POLL_S = 0.2  # between two checks whether the run was stopped
END_S = 10.0  # for a replica to finish its forward
READER, READ_S = "reader", 1.0  # may wait for standard input; ending it loses nothing


@dataclass(slots=True)
class Times:
    """Seconds by stage, in total for all threads and processes of the stage."""

    waited_for_rows: float = 0.0  # idle replicas
    read: float = 0.0
    decode: float = 0.0
    compute: float = 0.0
    answer: float = 0.0
    write: float = 0.0


class FinishedBlock(NamedTuple):
    """A block that is ready to be written.

    Attributes:
        computed_count: number of rows that the model computed.
        times: seconds spent waiting for it, in the backend, and creating the table.
    """

    block: Block
    table: Any
    computed_count: int
    times: tuple[float, float, float]


class Stages(Protocol):
    """The stages from rows to tables: local, or on a cluster."""

    def start(self) -> None:
        """Load and verify the backends.

        Raises:
            Exception: whatever a backend raises.
        """

    def run(self, first: int, blocks: Callable[[], Iterator[Block]]) -> Iterator[FinishedBlock]:
        """Score blocks; yields them in order.

        Args:
            first: first row of the first block.
            blocks: reads them; not called by stages that read on their own.

        Raises:
            Exception: whatever a stage raises.
        """

    def close(self) -> bool:
        """Stop; returns whether all threads have ended."""


Message: TypeAlias = tuple[int, FinishedBlock] | BaseException | int | None


class LocalStages:
    """Runs blocks through the model and yields them in order.

    Args:
        model: creates backends, one for each replica.
        answers: creates tables.
    """

    def __init__(self, model: BulkModel, answers: Answers) -> None:
        self._model = model
        self._answers = answers
        self._replicas = len(model.devices)
        self._blocks: queue.Queue[tuple[int, Block]] = queue.Queue(self._replicas + 1)
        self._ahead = threading.Semaphore(2 * self._replicas + 2)  # read and not yet written
        # To the main thread: a block with its position, the number of blocks, None when a replica
        # is ready, or an error.
        self._messages: queue.Queue[Message] = queue.Queue()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Load and verify the backends.

        Raises:
            Exception: whatever a backend raises.
        """
        for replica in range(self._replicas):
            self._begin(f"replica-{replica}", partial(self._score, replica))
        for _ in range(self._replicas):
            message = self._message()
            if isinstance(message, BaseException):
                raise message

    def run(self, _: int, blocks: Callable[[], Iterator[Block]]) -> Iterator[FinishedBlock]:
        """Score blocks; yields them in order.

        Args:
            blocks: called in the reading thread.

        Raises:
            Exception: whatever a stage raises.
        """
        self._begin(READER, partial(self._read, blocks))
        waiting: dict[int, FinishedBlock] = {}
        following, total = 0, -1
        while following != total:
            message = self._message()
            if isinstance(message, BaseException):
                raise message
            if isinstance(message, int):
                total = message
            elif message is not None:
                waiting[message[0]] = message[1]
            while (result := waiting.pop(following, None)) is not None:
                following += 1
                yield result
                self._ahead.release()

    def close(self) -> bool:
        """Stop; returns whether all threads have ended."""
        self._stop.set()
        began = time.monotonic()
        for thread in self._threads:
            most_s = READ_S if thread.name == READER else END_S
            thread.join(max(0.0, began + most_s - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _message(self) -> Message:
        # Never without a timeout: Python runs the handler of a signal in the main thread, between
        # two instructions. One that arrives just before this wait, or in another thread, is
        # noticed only when the wait ends.
        while True:
            try:
                return self._messages.get(timeout=POLL_S)
            except queue.Empty:
                continue

    def _begin(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Abandoned:
                return
            except BaseException as error:  # raised in the main thread, which waits for it
                self._messages.put(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _read(self, blocks: Callable[[], Iterator[Block]]) -> None:
        count = 0
        for block in blocks():
            self._until(partial(self._ahead.acquire, timeout=POLL_S))
            self._until(partial(self._put, (count, block)))
            count += 1
        self._messages.put(count)

    def _put(self, block: tuple[int, Block]) -> bool:
        try:
            self._blocks.put(block, timeout=POLL_S)
        except queue.Full:
            return False
        return True

    def _score(self, replica: int) -> None:
        self._model.begin(replica)
        model = self._model
        make = partial(model.backend, replica)
        scorer = Scorer(model.manifest, make, model.contract, model.batch, self._beat)
        try:
            self._messages.put(None)
            while True:
                began = time.perf_counter()
                place, block = self._next()
                received_at = time.perf_counter()
                scored_block = scorer.score(block)
                computed_at = time.perf_counter()
                table = self._answers.table(scored_block)
                times = (
                    received_at - began,
                    computed_at - received_at,
                    time.perf_counter() - computed_at,
                )
                self._messages.put(
                    (place, FinishedBlock(block, table, scored_block.computed_count, times))
                )
                del block, scored_block, table
        finally:
            scorer.close()

    def _next(self) -> tuple[int, Block]:
        while True:
            self._beat()
            try:
                return self._blocks.get(timeout=POLL_S)
            except queue.Empty:
                continue

    def _until(self, attempt: Callable[[], bool]) -> None:
        while not attempt():
            self._beat()

    def _beat(self) -> None:
        """Check whether to stop, wherever a thread may end.

        Raises:
            Abandoned: if the run was stopped.
        """
        if self._stop.is_set():
            raise Abandoned("the run was stopped")
