"""The contract of a handler's artifact: a user's Python code that runs around served models.

Its manifest is in `manifest.json`, as a model's is, and says in its second field that it is a
handler's. The code is in one archive, so that every file of an artifact stays in one folder.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import math
import mimetypes
import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, JsonValue, model_validator

from models.bounds import check_below, check_same_bounds
from models.manifest import DIGEST_FILE, MANIFEST_FILE, SIGNATURE_FILE, FileDigest
from models.parts import Part, is_empty
from models.system.archive import ArchiveError, check_archive, read_entries
from models.tensors import Dimension, FileName, Name, TensorSpec

CODE_FILE = "handler.zip"
MAX_CODE_BYTES = 256 << 20  # code, and small files that it reads; weights belong into models
JSON = "application/json"
MEDIA_TYPES = {  # as the native contract names them
    ".json": JSON,
    ".npy": "application/x-npy",
    ".npz": "application/x-npz",
    ".wav": "audio/wav",
    ".flac": "audio/flac",
    ".webp": "image/webp",
    ".txt": "text/plain",
}
# `kind` is always the second field: the kind is known before tens of megabytes are parsed.
_BEGINNING = re.compile(rb'\s*\{\s*"schema_version"\s*:\s*[0-9]+\s*,\s*"kind"\s*:')
# Of numbers in JSON answers: models may answer in another precision on another processor.
RELATIVE, ABSOLUTE = 1e-3, 1e-5
MAX_DEPTH = 4  # handlers that call each other, the first one included

Entry = Annotated[
    str, Field(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*$")
]


# An axis of an item: its name, its smallest and its largest size. A tensor: its dtype, these axes,
# the smallest and the largest of its integers, and the axis whose size is more than each of them.
DeclaredAxis: TypeAlias = tuple[str | None, int, int]
DeclaredTensor: TypeAlias = tuple[str, tuple[DeclaredAxis, ...], int | None, int | None, str | None]


class CalledModel(Part):
    """A model that the handler calls; `version` is the only one that it may have, None: any."""

    name: Name
    version: int | None = Field(default=None, ge=1)

    def __str__(self) -> str:
        return self.name if self.version is None else f"{self.name}/{self.version}"


class HandlerLimits(Part):
    """The limits of a handler.

    Attributes:
        processes: the processes that run its code, in each process of the server.
        concurrency: requests that run at once in a process; a batch counts as one.
        seconds: the longest time of one request.
        memory_bytes: resident memory of one process with its children.
        max_batch_size: the most requests for one `predict_batch`; 1: it has `predict`.
        queue_limit: the most requests that wait for a process.
        body_bytes: the largest body; None: the server's limit.
    """

    processes: int = Field(default=1, ge=1, le=64)
    concurrency: int = Field(default=8, ge=1, le=1024)
    seconds: float = Field(default=30.0, gt=0, le=3600, allow_inf_nan=False)
    memory_bytes: int = Field(default=2 << 30, ge=32 << 20)
    max_batch_size: int = Field(default=1, ge=1, le=4096)
    queue_limit: int = Field(default=256, ge=1, le=65_536)
    body_bytes: int | None = Field(default=None, ge=1)


class HandlerExample(Part):
    """A request, and the answer that the handler gave at export; both bodies are files."""

    request: FileName
    media_type: str = Field(max_length=256)
    answer: FileName
    status: int = Field(ge=200, le=399)
    answer_type: str = Field(max_length=256)


class HandlerManifest(Part):
    """The whole contract of one version of one handler."""

    schema_version: Literal[2]
    kind: Literal["handler"]
    model: Name
    version: int = Field(ge=1)
    description: str
    entry: Entry = Field(description="module and class")
    models: tuple[CalledModel, ...] = ()
    media_types: tuple[str, ...] = Field(
        default=(), description="of the bodies of its examples; it may take others"
    )
    request_schema: dict[str, JsonValue] | None = Field(
        default=None, description="JSON schema of the bodies that it takes; null: any"
    )
    streams: bool = Field(default=False, description="whether it yields its answer")
    inputs: tuple[TensorSpec, ...] = Field(
        default=(),
        exclude_if=is_empty,
        description="that it declares, for the Open Inference Protocol; empty: none",
    )
    outputs: tuple[TensorSpec, ...] = Field(
        default=(), exclude_if=is_empty, description="the same of its answers"
    )
    limits: HandlerLimits
    golden: tuple[HandlerExample, ...] = Field(min_length=1)
    python_version: str
    packages: dict[str, str] = Field(
        default_factory=dict, description="versions of the packages that it had imported at export"
    )
    files: dict[FileName, FileDigest]
    created_at: dt.datetime
    git_commit: str | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if own := {MANIFEST_FILE, DIGEST_FILE, SIGNATURE_FILE} & set(self.files):
            raise ValueError(
                f"{', '.join(sorted(own))} cannot have a digest in the manifest itself"
            )
        needed = [CODE_FILE]
        needed += [file for each in self.golden for file in (each.request, each.answer)]
        if missing := [name for name in needed if name not in self.files]:
            raise ValueError(f"{missing[0]!r} has no digest")
        names = [each.name for each in self.models]
        if len(set(names)) != len(names):
            raise ValueError(f"each model may be named once, got {names}")
        if self.model in names:
            raise ValueError(f"the handler {self.model!r} cannot call itself")
        if bool(self.inputs) != bool(self.outputs):
            raise ValueError("it has only one of inputs and outputs")
        for tensors in (self.inputs, self.outputs):
            if len({each.name for each in tensors}) != len(tensors):
                raise ValueError(f"each tensor has one name, got {[each.name for each in tensors]}")
            check_same_bounds(tensors)
            check_below(tensors)
        return self

    def public(self) -> dict[str, JsonValue]:
        """Return the part for clients, without examples and digests."""
        return self.model_dump(mode="json", exclude={"golden", "files"})


def declared_tensors(tensors: Mapping[str, DeclaredTensor]) -> tuple[TensorSpec, ...]:
    """The inputs or outputs of a handler.

    Args:
        tensors: by name.

    Raises:
        ValidationError: a model cannot have them, either.
    """
    return tuple(_spec(name, *tensor) for name, tensor in tensors.items())


def _spec(
    name: str,
    dtype: str,
    axes: Sequence[DeclaredAxis],
    least: int | None,
    most: int | None,
    below: str | None,
) -> TensorSpec:
    sizes, free = [-1], []
    for axis_name, smallest, largest in axes:
        is_free = axis_name is not None or smallest < largest
        sizes.append(-1 if is_free else largest)
        if is_free:
            free.append(Dimension(name=axis_name, least=smallest, most=largest))
    fields = {"name": name, "dtype": dtype, "shape": sizes, "dimensions": free}
    limits = {"minimum": least, "maximum": most, "below": below}
    return TensorSpec.model_validate(fields | limits)


def is_handler(text: bytes) -> bool:
    """Whether the text of a manifest is a handler's, by its first two fields."""
    return _BEGINNING.match(text) is not None


def is_same_answer(expected: bytes, answer: bytes, media_type: str) -> bool:
    """Whether an answer equals that of an example, which has the same status and media type.

    JSON (`application/json` and types that end with `+json`) is compared as such, and its numbers
    may differ by rounding. Texts (`text/*`) must be equal. Of all others only status and media type
    count: the bytes of pictures, for example, depend on the library that writes them.
    """
    essence = media_type.partition(";")[0].strip().lower()
    if essence.startswith("text/"):
        return expected == answer
    if essence != JSON and not essence.endswith("+json"):
        return True
    try:
        return _is_close(json.loads(expected), json.loads(answer))
    except (ValueError, RecursionError):  # one of them is not JSON, or too deep
        return False


def _is_close(expected: object, value: object) -> bool:
    if isinstance(expected, bool) or isinstance(value, bool):
        return expected is value
    if isinstance(expected, int | float) and isinstance(value, int | float):
        try:
            return math.isclose(expected, value, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
        except OverflowError:  # whole numbers that no float can have
            return expected == value
    if isinstance(expected, list) and isinstance(value, list):
        return len(expected) == len(value) and all(map(_is_close, expected, value))
    if isinstance(expected, dict) and isinstance(value, dict):
        return expected.keys() == value.keys() and all(
            _is_close(each, value[name]) for name, each in expected.items()
        )
    return expected == value


def unpack_code(archive: bytes, folder: Path) -> None:
    """Write the files of `CODE_FILE` into a folder.

    Raises:
        ArchiveError: if the archive is damaged, too large, or leads out of the folder.
        OSError: if a file cannot be written.
    """
    file = io.BytesIO(archive)
    names = check_archive(file, CODE_FILE, of_torch=False)
    if len(archive) > MAX_CODE_BYTES:
        raise ArchiveError(f"{CODE_FILE} has {len(archive):,} bytes; at most {MAX_CODE_BYTES:,}")
    names = [name for name in names if not name.endswith("/")]
    for name, content in zip(names, read_entries(file, CODE_FILE, names), strict=True):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def pack_code(source: Path) -> bytes:
    """Return the content of `CODE_FILE` for a file, or for a folder without hidden files.

    Equal sources give equal bytes: it has no times and no owners.

    Raises:
        OSError: if a file cannot be read.
    """
    if source.is_dir():
        paths = sorted(each for each in source.rglob("*") if each.is_file())
        files = {each.relative_to(source): each for each in paths}
    else:
        files = {Path(source.name): source}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, path in files.items():
            if not any(part.startswith(".") or part == "__pycache__" for part in name.parts):
                archive.writestr(zipfile.ZipInfo(name.as_posix()), path.read_bytes())
    return packed.getvalue()


def media_type_of(path: Path) -> str | None:
    """Return the Content-Type of a file, by the ending of its name; None: it is unknown."""
    return MEDIA_TYPES.get(path.suffix.lower()) or mimetypes.guess_type(path.name)[0]
