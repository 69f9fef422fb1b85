"""The state of a run: manifest.json describes it, a journal has a line for each finished shard."""

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
        first: number of its first row.
        errors: number of bad rows.
        computed: number of rows that the model computed; the others were equal to one, or bad.
        bytes: size of its file.
        sha256: digest of its file.
        stream: digest of standard input up to the shard's end.
    """

    name: str
    first: int
    rows: int
    errors: int
    computed: int
    bytes: int
    sha256: str
    stream: str = ""


class RunState:
    """The folder of a run.

    Args:
        folder: `--out`.
        plan: what must not change until the end, by name: model, inputs, options.
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
        """Number of finished rows."""
        return sum(shard.rows for shard in self.shards)

    @property
    def errors(self) -> int:
        """Number of bad rows among them."""
        return sum(shard.errors for shard in self.shards)

    def begin(self, steps: list[dict[str, object]]) -> None:
        """Write the manifest.

        Args:
            steps: the form for each batch size, which a resumed run follows.

        Raises:
            BulkError: if it cannot be written.
        """
        self._steps = steps
        self._write("running", {})
        # Without a last line that a crash has truncated, after which nothing could be read.
        write_atomically(self.folder / JOURNAL, b"".join(map(_line, self.shards)))

    def add(self, shard: Shard) -> None:
        """Record a finished shard.

        Raises:
            BulkError: if it cannot be recorded.
        """
        append(self.folder / JOURNAL, _line(shard))
        self.shards.append(shard)

    def end(
        self, status: str, open_errors: list[dict[str, object]], report: Mapping[str, Any]
    ) -> None:
        """Write errors.parquet and the manifest.

        Args:
            status: `finished`, or the reason why not.
            open_errors: the errors of rows that are in no shard.
            report: counts and times of the last part of the run.

        Raises:
            BulkError: if they cannot be written.
        """
        write_errors(self.folder, lambda: self._bad_rows(open_errors))
        self._write(status, report)
        if status == "finished":
            (self.folder / JOURNAL).unlink(missing_ok=True)

    def _bad_rows(self, open_errors: list[dict[str, object]]) -> Iterator[list[dict[str, object]]]:
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
        yield open_errors

    def _write(self, status: str, report: Mapping[str, Any]) -> None:
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
            "last_part": report,
            "shards": [asdict(shard) for shard in self.shards] if status != "running" else [],
        }
        option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_APPEND_NEWLINE
        write_atomically(self.folder / MANIFEST, orjson.dumps(content, option=option))


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The files of an earlier part of a run."""

    manifest: Mapping[str, Any]
    shards: list[Shard]

    @property
    def is_finished(self) -> bool:
        return bool(self.manifest.get("status") == "finished")


def find(folder: Path, *, resume: bool) -> EarlierRun | None:
    """Read the folder of a run, which is locked; None if no run has begun.

    Raises:
        UsageError: if it has files and `resume` is False, or they are not a run's.
        BulkError: if it cannot be read, or a finished shard is missing or has another size.
    """
    try:
        there = [each.name for each in folder.iterdir() if not each.name.endswith(".tmp")]
    except OSError as error:
        raise BulkError(f"{folder} cannot be used: {error.strerror}") from error
    if not there:
        return None
    if not resume:
        raise UsageError(f"{folder} is not empty: choose another folder, or continue with --resume")
    try:
        manifest = orjson.loads((folder / MANIFEST).read_bytes())
        journal = folder / JOURNAL
        lines = journal.read_bytes().splitlines() if journal.exists() else []
        if manifest["status"] == "finished":
            shards = [Shard(**each) for each in manifest["shards"]]
        else:
            shards = _in_a_row(lines)
    except (OSError, orjson.JSONDecodeError, KeyError, TypeError) as error:  # or another program's
        raise UsageError(f"{folder} has no readable {MANIFEST}: no run to resume") from error
    for shard in shards:
        path = folder / shard.name
        if not path.exists() or path.stat().st_size != shard.bytes:
            raise BulkError(
                f"{path} has changed since it was written: start again in another folder"
            )
    return EarlierRun(manifest, shards)


def check_unchanged(earlier: EarlierRun, plan: Mapping[str, Any], folder: Path) -> None:
    """Check that a run continues with the plan with which it began.

    Raises:
        UsageError: with the difference.
    """
    for part, value in plan.items():
        then, now = earlier.manifest.get(part), orjson.loads(orjson.dumps(value))
        if then == now:
            continue
        if part == "inputs":
            raise UsageError(
                f"{_input_difference(then, now)}: start again in another folder than {folder}"
            )
        name = part
        if isinstance(then, dict) and isinstance(now, dict):
            key = next(key for key in {**then, **now} if then.get(key) != now.get(key))
            name, then, now = f"{part}.{key}", then.get(key), now.get(key)
        raise UsageError(
            f"the run in {folder} began with another {name}: {_short(then)}, now {_short(now)}; "
            "start again in another folder"
        )


def _input_difference(then: Any, now: Any) -> str:
    """The inputs that differ from those with which a run began."""
    before, after = ([each["argument"] for each in arguments] for arguments in (then, now))
    if before != after:
        return f"the run began with the inputs {_short(before)}, not {_short(after)}"
    which = next(old for old, new in zip(then, now, strict=True) if old != new)
    return f"{which['argument']} has changed since the run began (file names, sizes or times)"


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock the folder of a run against other processes; create it if it does not exist.

    Raises:
        UsageError: if another process holds the lock.
        BulkError: if it cannot be created.
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
            raise UsageError(f"another process is using {folder}") from error
        yield
    finally:
        os.close(handle)  # releases the lock, as does the end of the process


def _line(shard: Shard) -> bytes:
    return orjson.dumps(asdict(shard), option=orjson.OPT_APPEND_NEWLINE)


def _in_a_row(lines: list[bytes]) -> list[Shard]:
    """The shards of a journal, up to an incomplete line."""
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
