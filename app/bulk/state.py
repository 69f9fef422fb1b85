"""What a run has done: manifest.json says how, a journal has a line for each finished shard."""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from app.bulk.errors import BulkError, UsageError
from app.bulk.writing import (
    ERRORS_FILE,
    append,
    read_shard,
    write_atomically,
    write_errors,
)

MANIFEST, JOURNAL = "manifest.json", "progress.jsonl"
SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Shard:
    """A finished shard.

    Attributes:
        name: of its file.
        first: number of its first row.
        rows: how many.
        errors: how many of them are bad.
        computed: how many the model ran on; the others were equal to one of them, or bad.
        bytes: of its file.
        sha256: of its file.
        stream: of standard input: digest of what was read up to its end.
    """

    name: str
    first: int
    rows: int
    errors: int
    computed: int
    bytes: int
    sha256: str
    stream: str = ""


class Run:
    """The folder of a run.

    Args:
        folder: `--out`.
        plan: what must not change until the end: model, inputs, options; by name.
        shards: those that are finished.
        packages: their versions.
    """

    def __init__(
        self,
        folder: Path,
        plan: Mapping[str, Any],
        shards: list[Shard],
        packages: Mapping[str, str],
    ) -> None:
        self.folder = folder
        self.plan = plan
        self.shards = shards
        self._packages = packages
        self._steps: list[dict[str, object]] = []

    @property
    def rows(self) -> int:
        """How many rows are done."""
        return sum(shard.rows for shard in self.shards)

    @property
    def errors(self) -> int:
        """How many of them are bad."""
        return sum(shard.errors for shard in self.shards)

    def begin(self, steps: list[dict[str, object]]) -> None:
        """Write the manifest.

        Args:
            steps: the form that runs each batch size: a resumed run follows them.

        Raises:
            BulkError: it cannot be written.
        """
        self._steps = steps
        self._write("running", {})
        # Without the end of a line that a crash has cut off, behind which nothing could be read.
        write_atomically(self.folder / JOURNAL, b"".join(map(_line, self.shards)))

    def add(self, shard: Shard) -> None:
        """Note that a shard is there.

        Raises:
            BulkError: it cannot be noted.
        """
        append(self.folder / JOURNAL, _line(shard))
        self.shards.append(shard)

    def end(
        self, status: str, unfinished: list[dict[str, object]], took: Mapping[str, Any]
    ) -> None:
        """Write errors.parquet and the manifest.

        Args:
            status: `finished`, or why not.
            unfinished: the errors of rows that are in no shard.
            took: what the last part of the run did, and how long it took.

        Raises:
            BulkError: they cannot be written.
        """
        write_errors(self.folder, lambda: self._bad_rows(unfinished))
        self._write(status, took)
        if status == "finished":
            (self.folder / JOURNAL).unlink(missing_ok=True)

    def _bad_rows(self, unfinished: list[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
        for shard in self.shards:
            number = shard.first
            if not shard.errors:
                continue
            for rows in read_shard(self.folder / shard.name, ["id", "error"]):
                yield [
                    {"id": str(row["id"]), "row": number + at, "reason": row["error"]}
                    for at, row in enumerate(rows)
                    if row["error"] is not None
                ]
                number += len(rows)
        yield unfinished

    def _write(self, status: str, took: Mapping[str, Any]) -> None:
        content = {
            "schema_version": SCHEMA_VERSION,
            "status": status,
            "written_at": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            **self.plan,
            "steps": self._steps,
            "packages": self._packages,
            "rows": self.rows,
            "errors": self.errors,
            "errors_file": ERRORS_FILE if self.errors else None,
            "last_part": took,
            "shards": [asdict(shard) for shard in self.shards] if status != "running" else [],
        }
        option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        write_atomically(self.folder / MANIFEST, orjson.dumps(content, option=option))


@dataclass(frozen=True, slots=True)
class Found:
    """What an earlier part of a run left.

    Attributes:
        manifest: its content.
        shards: those that are finished.
    """

    manifest: Mapping[str, Any]
    shards: list[Shard]

    @property
    def is_finished(self) -> bool:
        """Whether nothing is left to do."""
        return bool(self.manifest.get("status") == "finished")


def find(folder: Path, *, resume: bool) -> Found | None:
    """Look at the folder of a run, which is locked. None: nothing was begun.

    Raises:
        UsageError: it has files, but the run is not to be resumed; or it is no run's.
        BulkError: it cannot be read, or a finished shard is not there in its size.
    """
    try:
        there = [each.name for each in folder.iterdir() if not each.name.endswith(".tmp")]
    except OSError as error:
        raise BulkError(f"{folder} cannot be used: {error.strerror}") from error
    if not there:
        return None
    if not resume:
        raise UsageError(f"{folder} is not empty: choose another folder, or go on with --resume")
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
        journal = folder / JOURNAL
        lines = journal.read_bytes().splitlines() if journal.exists() else []
    except (OSError, orjson.JSONDecodeError) as error:
        raise UsageError(f"{folder} has no readable {MANIFEST}: it is no run to resume") from error
    if manifest.get("status") == "finished":
        shards = [Shard(**each) for each in manifest["shards"]]
    else:
        shards = _in_a_row(lines)
    for shard in shards:
        path = folder / shard.name
        if not path.exists() or path.stat().st_size != shard.bytes:
            raise BulkError(f"{path} is not as it was written: begin again in another folder")
    return Found(manifest, shards)


def check_unchanged(found: Found, plan: Mapping[str, Any], folder: Path) -> None:
    """Check that a run goes on with what it began with.

    Raises:
        UsageError: naming what differs.
    """
    for part, value in plan.items():
        then, now = found.manifest.get(part), orjson.loads(orjson.dumps(value))
        if then == now:
            continue
        if part == "inputs":
            raise UsageError(f"{_changed(then, now)}: begin again in another folder than {folder}")
        name = part
        if isinstance(then, dict) and isinstance(now, dict):
            key = next(key for key in {**then, **now} if then.get(key) != now.get(key))
            name, then, now = f"{part}.{key}", then.get(key), now.get(key)
        raise UsageError(
            f"{folder} was begun with another {name}: {_short(then)}, now {_short(now)}; begin "
            "again in another folder"
        )


def _changed(then: Any, now: Any) -> str:
    """Which inputs are not those that a run began with."""
    before, after = ([each["argument"] for each in given] for given in (then, now))
    if before != after:
        return f"the run was begun with the inputs {_short(before)}, not {_short(after)}"
    which = next(old for old, new in zip(then, now, strict=True) if old != new)
    return f"{which['argument']} has changed since the run began (names, sizes or times of files)"


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other processes from the folder of a run; make it if it is not there.

    Raises:
        UsageError: another one is at it.
        BulkError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BulkError(f"{folder} cannot be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"another process is at work in {folder}") from error
        yield
    finally:
        os.close(handle)  # and with it the lock, as does the end of the process


def _line(shard: Shard) -> bytes:
    return orjson.dumps(asdict(shard), option=orjson.OPT_APPEND_NEWLINE)


def _in_a_row(lines: list[bytes]) -> list[Shard]:
    """The shards of a journal; a line that was not written as a whole is the last one."""
    shards: list[Shard] = []
    for line in lines:
        try:
            shard = Shard(**orjson.loads(line))
        except (orjson.JSONDecodeError, TypeError):
            break
        if shard.first != sum(each.rows for each in shards):
            break
        shards.append(shard)
    return shards


def _short(value: object) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 200 else text[:200] + "..."
