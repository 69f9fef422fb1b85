"""Runs blocks through a handler, a request for each row."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple

import pyarrow as pa

from app.bulk.blocks import Block
from app.bulk.errors import BulkError
from app.bulk.handlers.bodies import Body, BodyBlock
from app.bulk.handlers.client import Client, Outcome
from app.bulk.handlers.server import PrivateServer
from app.bulk.pipeline import POLL_S, FinishedBlock
from app.bulk.tables import table_of
from app.codecs.base import JSON
from app.errors import Abandoned

AHEAD = 2  # blocks whose rows are sent
MAX_BLOCK_BYTES = 1 << 30  # of the answers to a block, which are written together
FIELDS = (("answer", pa.string()), ("media_type", pa.string()), ("body", pa.binary()))


class _Sent(NamedTuple):
    block: BodyBlock
    futures: list[Future[Outcome]]
    began: float


class HandlerStages:
    """See `Stages`.

    Args:
        server: has the handler.
        path: of the call.
        places: rows that are sent at once.
        timeout_s: for an answer.
        schema: of the results.
    """

    def __init__(
        self, server: PrivateServer, path: str, places: int, timeout_s: float, schema: Any
    ) -> None:
        self._server = server
        self._path = path
        self._timeout_s = timeout_s
        self._schema = schema
        self._stop = threading.Event()
        self._local = threading.local()
        self._threads = ThreadPoolExecutor(places, "row")
        self._answered = 0.0  # when the block before had all its answers
        self.steps: list[dict[str, object]] = []
        self.devices: Sequence[object] = range(places)

    def start(self) -> None:
        """Start the server; its examples are replayed.

        Raises:
            BulkError: if the handler does not become ready.
        """
        self._server.start()

    def run(self, _: int, blocks: Callable[[], Iterator[Block]]) -> Iterator[FinishedBlock]:
        """See `Stages.run`.

        Raises:
            BulkError: if the run cannot continue.
        """
        sent: deque[_Sent] = deque()
        for block in blocks():
            if not isinstance(block, BodyBlock):
                raise TypeError("bug: a block without bodies")
            futures = [self._threads.submit(self._ask, body) for body in block.bodies]
            sent.append(_Sent(block, futures, time.perf_counter()))
            if len(sent) > AHEAD:
                yield self._finished(sent)
        while sent:
            yield self._finished(sent)

    def close(self) -> bool:
        """End the server, and with it what waits for answers."""
        self._stop.set()
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._server.stop()
        return True

    def _finished(self, sent: deque[_Sent]) -> FinishedBlock:
        oldest = sent.popleft()
        outcomes = [_result(each) for each in oldest.futures]
        if any(each.is_uncertain for each in outcomes):
            for each in sent:  # alone: nothing else may be in the handler's processes
                for future in each.futures:
                    _wait(future)
            for at, outcome in enumerate(outcomes):
                if outcome.is_uncertain:
                    again = self._threads.submit(self._ask, oldest.block.bodies[at])
                    outcomes[at] = _result(again)
        answered = time.perf_counter()
        table = self._table(oldest.block, outcomes)
        busy_s = (answered - max(oldest.began, self._answered)) * len(self.devices)
        self._answered = answered
        times = (0.0, busy_s, time.perf_counter() - answered)
        return FinishedBlock(oldest.block, table, len(outcomes), times)

    def _ask(self, body: Body) -> Outcome:
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            client = self._local.client = self._server.client(self._timeout_s)
        return client.ask(self._path, body, self._beat)

    def _beat(self) -> None:
        if self._stop.is_set():
            raise Abandoned("the run was stopped")

    def _table(self, block: BodyBlock, outcomes: Sequence[Outcome]) -> Any:
        size = sum(len(each.body) for each in outcomes)
        if size > MAX_BLOCK_BYTES:
            raise BulkError(
                f"the answers to {len(outcomes)} rows have {size:,} bytes, more than "
                f"{MAX_BLOCK_BYTES:,}: use a smaller --rows-per-shard, which no block exceeds"
            )
        rows: list[tuple[str | None, str | None, bytes | None]] = [(None, None, None)] * len(block)
        errors: list[str | None] = [block.errors.get(row) for row in range(len(block))]
        for row, outcome in zip(block.good.tolist(), outcomes, strict=True):
            errors[row] = outcome.error
            if outcome.error is None:
                rows[row] = _cells(outcome)
        columns = [
            pa.array([each[at] for each in rows], kind) for at, (_, kind) in enumerate(FIELDS)
        ]
        return table_of(block, columns, pa.array(errors, pa.string()), self._schema)


def _cells(outcome: Outcome) -> tuple[str | None, str | None, bytes | None]:
    """The answer if it is a text, its media type, and its bytes if it is none."""
    kind = outcome.media_type.partition(";")[0].strip().lower()
    if kind == JSON or kind.endswith("+json") or kind.startswith("text/"):
        try:
            return outcome.body.decode(), outcome.media_type, None
        except UnicodeDecodeError:
            pass  # a text in another encoding: its bytes
    return None, outcome.media_type or None, outcome.body


def _wait(future: Future[Outcome]) -> None:
    """Wait for a request; in pieces, so that signals are noticed, see `LocalStages`."""
    while not wait((future,), POLL_S).done:
        continue


def _result(future: Future[Outcome]) -> Outcome:
    _wait(future)
    return future.result()
