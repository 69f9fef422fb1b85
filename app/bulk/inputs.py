"""From the arguments of a command to files: names, folders and globs, all of one format."""

from __future__ import annotations

import glob
import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.bulk.errors import UsageError

STREAM, STREAM_FORMAT = "-", "stream"
FORMATS = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npy": "npy",
    ".png": "pictures",
    ".jpg": "pictures",
    ".jpeg": "pictures",
}


@dataclass(frozen=True, slots=True)
class Given:
    """One argument, and what it was when the run began.

    Attributes:
        argument: as written.
        files: how many files it is.
        bytes: their sizes together.
        digest: SHA-256 of their names, sizes and times of change.
    """

    argument: str
    files: int
    bytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files of a run.

    Attributes:
        format: one of FORMATS' values, or `stream`.
        files: in the order of their rows.
        ids: one for each file, relative to its argument: what pictures are called.
        given: the arguments.
    """

    format: str
    files: tuple[Path, ...]
    ids: tuple[str, ...]
    given: tuple[Given, ...]


def find_inputs(arguments: Sequence[str]) -> Inputs:
    """Find the files.

    Raises:
        UsageError: there is no such file, a glob or folder has none, or formats are mixed.
    """
    if STREAM in arguments:
        if len(arguments) > 1:
            raise UsageError(f"{STREAM} is standard input, and cannot be combined with files")
        return Inputs(STREAM_FORMAT, (), (), (Given(STREAM, 0, 0, ""),))
    files: list[Path] = []
    ids: list[str] = []
    given: list[Given] = []
    formats: dict[str, Path] = {}
    for argument in arguments:
        found = list(_found(argument))
        for path, name in found:
            formats.setdefault(_format(path), path)
            files.append(path)
            ids.append(name)
        given.append(_given(argument, [path for path, _ in found]))
    twice = [path for path, count in Counter(map(os.path.abspath, files)).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]} is given twice: its rows would be there twice")
    if len(formats) > 1:
        shown = ", ".join(f"{path} ({kind})" for kind, path in formats.items())
        raise UsageError(f"the inputs are of several formats, {shown}: score each on its own")
    return Inputs(next(iter(formats)), tuple(files), tuple(ids), tuple(given))


def _found(argument: str) -> Iterator[tuple[Path, str]]:
    path = Path(argument)
    if path.is_dir():
        inside = [
            Path(folder, name)
            for folder, folders, names in os.walk(path)
            if not (folders.sort() or False)
            for name in names
            if not name.startswith(".") and Path(name).suffix.lower() in FORMATS
        ]
        if not inside:
            raise UsageError(f"the folder {argument} has no file that can be read ({_suffixes()})")
        yield from ((each, each.relative_to(path).as_posix()) for each in sorted(inside))
    elif path.exists():
        yield path, argument
    elif glob.has_magic(argument):
        matches = sorted(
            each for each in glob.glob(argument, recursive=True) if Path(each).is_file()
        )
        if not matches:
            raise UsageError(f"no file matches {argument}")
        yield from ((Path(each), each) for each in matches)
    else:
        raise UsageError(f"{argument} does not exist")


def _format(path: Path) -> str:
    found = FORMATS.get(path.suffix.lower())
    if found is None:
        raise UsageError(f"{path} is of no format that can be read ({_suffixes()})")
    return found


def _suffixes() -> str:
    return ", ".join(FORMATS)


def _given(argument: str, files: Sequence[Path]) -> Given:
    digest, size = hashlib.sha256(), 0
    for path in files:
        stat = path.stat()
        size += stat.st_size
        digest.update(f"{path}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return Given(argument, len(files), size, digest.hexdigest())
