"""Arrays of .npz files, as numpy.savez and numpy.savez_compressed write them.

Such a file is a zip archive with an .npy file for each array. Those of clients are untrusted: what
they claim is checked before anything is unpacked, and nothing is ever unpickled.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from app.codecs.base import Budget
from app.codecs.npy import read_npy
from app.codecs.values import short
from app.errors import InvalidInput, PayloadTooLarge
from app.types import Array
from models.system.archive import DAMAGE, ArchiveError, read_directory, read_entry
from models.tensors import TensorSpec

SUFFIX = ".npy"
DIRECTORY_BYTES = 1024  # of an archive for each array; numpy writes about 60
# A file may unpack to 32 times its size, or to a mebibyte, as bodies with a Content-Encoding may;
# in such a body, to 32 times the received bytes.
MAX_RATIO, FREE_BYTES, MAX_UNPACKED_BYTES = 32, 1 << 20, 64 << 20
PART_BYTES = 256 << 10
MAX_SHOWN = 8  # names from a client in an error


class File(NamedTuple):
    """An array of an archive that is written.

    Attributes:
        size: bytes of all parts.
        parts: of an .npy file.
    """

    name: str
    size: int
    parts: Iterable[memoryview]


def read_npz(
    specs: Sequence[TensorSpec],
    body: bytes,
    *,
    many: bool,
    budget: Budget | None,
    may_be_empty: bool = False,
) -> dict[str, Array]:
    """The items of a file, for each input [n, *shape] of its dtype; n is 1 without `many`.

    Args:
        specs: the inputs; each must be an array of this name in the file, and nothing else.
        body: the file.
        many: whether each array has a leading axis for the items.
        budget: of the request.
        may_be_empty: see `read_npy`.

    Raises:
        TooLongForLoop: on the event loop, if unpacking would take too long there.
        PayloadTooLarge: if the file unpacks to too many bytes.
        InvalidInput: if the file is damaged, or the model does not accept its arrays.
    """
    if budget is not None:
        budget.read(len(body))
    file = io.BytesIO(body)
    try:
        most = DIRECTORY_BYTES * (1 + len(specs))
        entries = {each.filename: each for each in read_directory(file, "the .npz file", most)}
    except ArchiveError as error:
        raise InvalidInput(str(error)) from error
    _check_names(specs, entries)
    unpacked = sum(entry.file_size for entry in entries.values())
    received = (0 if budget is None else budget.received) or len(body)
    limit = max(len(body), min(MAX_UNPACKED_BYTES, max(FREE_BYTES, MAX_RATIO * received)))
    if unpacked > limit:
        raise PayloadTooLarge(
            f"the .npz file unpacks to {unpacked} bytes, the limit for {received} received bytes "
            f"is {limit}; write it with numpy.savez, which does not compress, or split it"
        )
    if budget is not None:
        budget.read(unpacked)
    arrays = {}
    try:
        with zipfile.ZipFile(file) as archive:
            for spec in specs:
                data = read_entry(archive, entries[spec.name + SUFFIX])
                arrays[spec.name] = _array(spec, data, many=many, may_be_empty=may_be_empty)
    except DAMAGE as error:
        raise InvalidInput(f"the .npz file is damaged: {error}") from error
    return arrays


def check_counts(shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Check that all arrays of a file have the same number of items.

    Raises:
        InvalidInput: with the numbers.
    """
    counts = {name: shape[0] for name, shape in shapes.items()}
    if len(set(counts.values())) > 1:
        raise InvalidInput(f"the arrays of the .npz file differ in their number of items: {counts}")


def _check_names(specs: Sequence[TensorSpec], names: Iterable[str]) -> None:
    wanted = [spec.name + SUFFIX for spec in specs]
    if set(names) == set(wanted):
        return
    given = sorted(names)
    shown = [short(each.removesuffix(SUFFIX)) for each in given[:MAX_SHOWN]]
    more = ", ..." * (len(given) > MAX_SHOWN)
    taken = ", ".join(repr(spec.name) for spec in specs)
    arguments = ", ".join(f"{spec.name}=..." for spec in specs)
    raise InvalidInput(
        f"the .npz file has the arrays {', '.join(shown) or 'none'}{more}; this model takes "
        f"exactly {taken}, as numpy.savez(file, {arguments}) writes"
    )


def _array(spec: TensorSpec, file: bytes, *, many: bool, may_be_empty: bool) -> Array:
    try:
        return read_npy(spec, file, many=many, may_be_empty=may_be_empty)
    except InvalidInput as error:
        raise type(error)(f"{spec.name}{SUFFIX}: {error}", error.details) from error


class _Sink:
    """A file for zipfile, which cannot go back; keeps what was written until it is taken."""

    def __init__(self) -> None:
        self._written: list[bytes] = []

    def write(self, data: bytes | memoryview) -> int:
        self._written.append(bytes(data))
        return len(data)

    def flush(self) -> None:
        """Needed by zipfile."""

    def taken(self) -> memoryview:
        written, self._written = self._written, []
        return memoryview(b"".join(written))


def npz_parts(files: Iterable[File]) -> Iterator[memoryview]:
    """An archive of .npy files, uncompressed, in parts that are quick to make."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[call-overload]  # needs no more
        for file in files:
            entry = zipfile.ZipInfo(file.name + SUFFIX)  # of no time: equal answers are equal bytes
            entry.file_size = file.size
            with archive.open(entry, "w") as written:
                for part in file.parts:
                    for at in range(0, len(part), PART_BYTES):
                        written.write(part[at : at + PART_BYTES])
                        yield sink.taken()
            yield sink.taken()
    yield sink.taken()
