"""One run: rows from a source, through the model, into shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from app.bulk.blocks import Block, BlockBounds, RawBlock, RowSource, raw_blocks
from app.bulk.errors import TooManyErrors
from app.bulk.pipeline import FinishedBlock, Stages, Times
from app.bulk.progress import Reporter
from app.bulk.state import RunState, Shard
from app.bulk.writing import ShardWriter, shard_name


@dataclass(frozen=True, slots=True)
class BulkJob:
    """What a run reads and writes.

    Attributes:
        source: the rows.
        decode: decodes its blocks, in order.
        bounds: where blocks and shards end.
        stop: the first row that is left out; None to read all rows.
        form: format of the shards.
        workers: number of decoding processes; 0 to decode in the reading thread.
        max_errors: maximum number of bad rows; None for any number.
    """

    source: RowSource
    decode: Callable[[Iterator[RawBlock]], Iterator[Block]]
    bounds: BlockBounds
    stop: int | None
    form: str
    workers: int
    max_errors: int | None


class Driver:
    """Does a job, from the current state of its run.

    Args:
        state: the folder, with the finished shards.
    """

    def __init__(self, job: BulkJob, state: RunState, stages: Stages, schema: Any) -> None:
        self._job = job
        self._state = state
        self._stages = stages
        self._schema = schema
        self._writer: ShardWriter | None = None
        self._shard: list[int] = []  # first row, rows, errors and computed rows of the open shard
        self._stream = ""
        self.bad: list[dict[str, object]] = []  # of the open shard
        self.times = Times()
        self.rows = self.errors = self.equal = 0
        self.seconds = 0.0

    def start(self) -> None:
        """Load and verify the backends."""
        self._stages.start()

    def work(self, report: Reporter) -> None:
        """Score all rows.

        Raises:
            TooManyErrors: if more rows are bad than allowed.
            BulkError: if the run cannot continue.
        """
        began = time.perf_counter()
        try:
            for result in self._stages.run(self._state.rows, self._blocks):
                self._write(result)
                report.advance(
                    self._state.rows + self._open_rows, self._state.errors + len(self.bad)
                )
            if self._shard:
                self._commit()
        finally:
            self.seconds = time.perf_counter() - began
            if self._writer is not None:
                self._writer.discard()

    def report(self) -> dict[str, float]:
        """The counts of this part of the run, and its seconds by stage."""
        counts = {"rows": self.rows, "errors": self.errors, "equal": self.equal}
        seconds = {**asdict(self.times), "seconds": self.seconds}
        return {**counts, **{name: round(spent_s, 3) for name, spent_s in seconds.items()}}

    def close(self) -> bool:
        """Stop all threads; returns whether they have ended."""
        return self._stages.close()

    @property
    def _open_rows(self) -> int:
        return self._shard[1] if self._shard else 0

    def _blocks(self) -> Iterator[Block]:
        job, state = self._job, self._state
        skipped_digest = state.shards[-1].stream if state.shards else ""
        raw = raw_blocks(job.source, state.rows, job.bounds, job.stop, skipped_digest)
        return job.decode(self._time_reads(raw))

    def _time_reads(self, raw: Iterator[RawBlock]) -> Iterator[RawBlock]:
        while True:
            began = time.perf_counter()
            block = next(raw, None)
            self.times.read += time.perf_counter() - began
            if block is None:
                return
            yield block

    def _write(self, result: FinishedBlock) -> None:
        began = time.perf_counter()
        block, count = result.block, len(result.block)
        bad = _bad_rows(result)
        if self._writer is None:
            number = block.first // self._job.bounds.per_shard
            path = self._state.folder / shard_name(number, self._job.form)
            self._writer = ShardWriter(path, self._schema)
            self._shard = [block.first, 0, 0, 0]
        self._writer.add(result.table)
        self.bad += bad
        for at, more in enumerate((count, len(bad), result.computed_count), 1):
            self._shard[at] += more
        self._stream = block.digest
        self._count(result, count, len(bad))
        if (block.first + count) % self._job.bounds.per_shard == 0:
            self._commit()
        self.times.write += time.perf_counter() - began
        max_errors = self._job.max_errors
        if max_errors is not None and self._state.errors + len(self.bad) > max_errors:
            raise TooManyErrors(
                f"{self._state.errors + len(self.bad)} bad rows, --max-errors allows {max_errors}"
            )

    def _count(self, result: FinishedBlock, count: int, bad: int) -> None:
        waited_s, compute_s, answer_s = result.times
        self.rows += count
        self.errors += bad
        self.equal += len(result.block.good) - result.computed_count
        self.times.waited_for_rows += waited_s
        self.times.decode += result.block.decode_s
        self.times.compute += compute_s
        self.times.answer += answer_s

    def _commit(self) -> None:
        if self._writer is None:
            return
        size, digest = self._writer.commit()
        first, rows, errors, computed_rows = self._shard
        name = shard_name(first // self._job.bounds.per_shard, self._job.form)
        self._writer, self._shard, self.bad = None, [], []
        self._state.add(Shard(name, first, rows, errors, computed_rows, size, digest, self._stream))


def _bad_rows(result: FinishedBlock) -> list[dict[str, object]]:
    errors = result.table.column("error")
    if errors.null_count == len(errors):
        return []
    block = result.block
    return [
        {"id": str(block.ids[row]), "row": block.first + row, "reason": reason}
        for row, reason in enumerate(errors.to_pylist())
        if reason is not None
    ]
