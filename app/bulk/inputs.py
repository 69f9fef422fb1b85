"""The input files of a command: names, folders and globs, all of one format."""

from __future__ import annotations

import errno
import glob
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.bulk.errors import UsageError
from models.system.local_paths import NotLocal, local_path

STREAM, STREAM_FORMAT = "-", "stream"
CSV, PICTURES, SOUNDS = "csv", "pictures", "sounds"
READ_LATER = (PICTURES, SOUNDS)  # a file that cannot be read is a bad row
FORMATS = {
    ".parquet": "parquet",
    ".csv": CSV,
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".npy": "npy",
    ".png": PICTURES,
    ".jpg": PICTURES,
    ".jpeg": PICTURES,
    ".webp": PICTURES,
    ".gif": PICTURES,
    ".wav": SOUNDS,
    ".flac": SOUNDS,
}


@dataclass(frozen=True, slots=True)
class InputArgument:
    """One argument, and its files when the run began.

    Attributes:
        argument: as written.
        bytes: total size of the files.
        digest: SHA-256 of their names, sizes and modification times.
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
        ids: the names of pictures or sounds, one for each file; relative to a folder if the folder
            is the only argument.
    """

    format: str
    files: tuple[Path, ...]
    ids: tuple[str, ...]
    arguments: tuple[InputArgument, ...]


def find_inputs(arguments: Sequence[str], out: Path | None = None) -> Inputs:
    """Find the files.

    Args:
        arguments: the command's arguments.
        out: the folder for the results; folders and globs do not include its files.

    Raises:
        UsageError: if a file does not exist, a glob or folder has none, or formats are mixed.
    """
    if STREAM in arguments:
        if len(arguments) > 1:
            raise UsageError(f"{STREAM} is standard input, and cannot be combined with files")
        return Inputs(STREAM_FORMAT, (), (), (InputArgument(STREAM, 0, 0, ""),))
    files: list[Path] = []
    ids: list[str] = []
    input_arguments: list[InputArgument] = []
    formats: dict[str, Path] = {}
    for argument in arguments:
        matches = list(_matches(argument, out.resolve() if out is not None else None))
        for path, name in matches:
            formats.setdefault(_format(path), path)
            files.append(path)
            # Two folders may have files with the same name.
            ids.append(readable(name if len(arguments) == 1 else str(path)))
        input_arguments.append(_examine(argument, [path for path, _ in matches]))
    twice = [path for path, count in Counter(map(os.path.abspath, files)).items() if count > 1]
    if twice:
        raise UsageError(f"{twice[0]} is given twice: its rows would be scored twice")
    if len(formats) > 1:
        formats_text = ", ".join(f"{path} ({kind})" for kind, path in formats.items())
        raise UsageError(
            f"the inputs have several formats, {formats_text}: score each format separately"
        )
    return Inputs(next(iter(formats)), tuple(files), tuple(ids), tuple(input_arguments))


def readable(name: str) -> str:
    """The name of a file as text; bytes that are not UTF-8 become backslash escapes."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _matches(argument: str, out: Path | None) -> Iterator[tuple[Path, str]]:
    try:
        path = local_path(argument)
    except NotLocal as error:
        raise UsageError(f"the input {error}") from error
    if os.path.isdir(path):  # unlike Path's, it raises no error for names that are too long
        inside = sorted(_inside(path, out))
        if not inside:
            raise UsageError(
                f"the folder {argument} has no file that can be read ({_suffixes()}); --out is "
                "not searched"
            )
        yield from ((each, each.relative_to(path).as_posix()) for each in inside)
    elif os.path.exists(path):
        yield path, argument
    elif glob.has_magic(argument):
        matches = [Path(each) for each in sorted(glob.glob(argument, recursive=True))]
        matches = [each for each in matches if not os.path.isdir(each) and not _is_in(each, out)]
        if not matches:
            raise UsageError(f"no file matches {argument}; --out is not searched")
        yield from ((each, str(each)) for each in matches)
    else:
        raise UsageError(f"{argument} does not exist or may not be read")


def _inside(folder: Path, out: Path | None) -> Iterator[Path]:
    """The files of a folder and its subfolders, including links.

    Raises:
        UsageError: if a folder cannot be read, or is a link to a folder that contains it.
    """
    folders: list[tuple[Path, frozenset[Path]]] = [(folder, frozenset())]
    while folders:
        folder, above = folders.pop()
        try:
            real = folder.resolve(strict=True)
            if real == out:
                continue
            if real in above:
                raise OSError(errno.ELOOP, "it is a link to a folder that contains it")
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    readable_file = Path(entry.name).suffix.lower() in FORMATS
                    if _is_folder(entry, surely=not readable_file):
                        folders.append((Path(entry.path), above | {real}))
                    elif readable_file:
                        yield Path(entry.path)
        except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links
            name = getattr(error, "filename", None) or folder
            reason = getattr(error, "strerror", error)
            raise UsageError(f"the folder {name} cannot be read: {reason}") from error


def _is_folder(entry: os.DirEntry[str], *, surely: bool) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        if surely:
            raise
        return False  # a file that cannot be read, which is reported elsewhere


def _is_in(path: Path, out: Path | None) -> bool:
    return out is not None and out in path.parent.resolve().joinpath(path.name).parents


def _format(path: Path) -> str:
    file_format = FORMATS.get(path.suffix.lower())
    if file_format is None:
        raise UsageError(f"{path} has no format that can be read ({_suffixes()})")
    return file_format


def _suffixes() -> str:
    return ", ".join(FORMATS)


def _examine(argument: str, files: Sequence[Path]) -> InputArgument:
    digest, size = hashlib.sha256(), 0
    for path in files:
        digest.update(os.fsencode(path))
        try:
            status = path.stat()
        except OSError as error:
            if _format(path) not in READ_LATER:
                raise UsageError(f"{path} cannot be read: {error.strerror}") from error
            digest.update(b"\0\0")  # a bad row
            continue
        if not stat.S_ISREG(status.st_mode) and _format(path) not in READ_LATER:
            raise UsageError(f"{path} is not a regular file; to read a stream, use {STREAM}")
        size += status.st_size
        digest.update(f"\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return InputArgument(readable(argument), len(files), size, digest.hexdigest())
