"""Inputs for which a shadow gave another answer, kept in memory for an administrator.

They are callers' data, so nothing is kept unless the models file asks for it.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Sequence
from functools import partial
from typing import NamedTuple

import orjson
import structlog

from app.codecs.base import Codec
from app.codecs.datatypes import DATATYPES
from app.errors import ItemFailed
from app.registry.loaded_models import LoadedModel
from app.registry.releases import Shadow
from app.shared_file import SharedFile
from app.threads import in_thread
from app.types import Arrays, Item, ModelId, Outcome
from models.tensors import TensorSpec

LOG = structlog.get_logger(__name__)
MOST_BYTES = 8 << 20  # of the entries of all models in all processes
SMALL_BYTES = 64 << 10  # of the arrays of an input or an answer; larger ones are not written
READINGS, READ_AGAIN_S = 20, 0.01  # of a file that is being replaced


class Pair(NamedTuple):
    """Two versions that are compared; an entry is dropped once this pair no longer is.

    Attributes:
        source: the served version, with its revision.
        digests: of the manifests of both.
        shadow: the setting.
    """

    source: ModelId
    digests: tuple[str, str]
    shadow: Shadow

    @classmethod
    def of(cls, source: LoadedModel, target: LoadedModel, shadow: Shadow) -> Pair:
        """The pair of a served version and its shadow."""
        return cls(source.id, (source.digest, target.digest), shadow)


class Comparison(NamedTuple):
    """An input that two versions have computed.

    Attributes:
        source, target: the served version and its shadow.
        item: the input.
        outputs: the answer of the served version.
        outcome: what the shadow returned.
        result: how the two compare.
    """

    source: LoadedModel
    target: LoadedModel
    item: Item
    outputs: Arrays
    outcome: Outcome
    result: str


class Entry(NamedTuple):
    """A kept input.

    Attributes:
        pair: the versions that were compared.
        at: when, in seconds since 1970.
        content: a JSON object: the time, the result, both answers, and the input.
    """

    pair: Pair
    at: float
    content: bytes


class Differing:
    """The kept inputs of all models. On the event loop.

    Each process keeps its own, and writes them to a file that the others read.

    Args:
        files: one of each process; empty if there is only one process.
        index: of this process.
    """

    def __init__(self, files: Sequence[SharedFile] = (), index: int = 0) -> None:
        self._own = files[index] if files else None
        self._others = [each for each in files if each is not self._own]
        self._most_bytes = MOST_BYTES // max(1, len(files))
        self._entries: deque[Entry] = deque()  # the oldest first
        self._is_written = not files  # else what a process before this one has left
        self._fails = False

    def add(self, entry: Entry) -> None:
        """Keep an entry, in place of the oldest ones if there are too many."""
        if len(entry.content) > self._most_bytes:
            return
        of_model = [e for e in self._entries if e.pair.source.name == entry.pair.source.name]
        if len(of_model) >= entry.pair.shadow.keep:
            self._entries.remove(of_model[0])
        self._entries.append(entry)
        while sum(len(each.content) for each in self._entries) > self._most_bytes:
            self._entries.popleft()
        self._is_written = self._own is None

    def keep_only(self, pairs: Collection[Pair]) -> None:
        """Drop the entries of all pairs but these."""
        left = deque(each for each in self._entries if each.pair in pairs)
        if len(left) < len(self._entries):
            self._entries = left
            self._is_written = self._own is None

    async def write(self) -> None:
        """Show the other processes what has changed since the last call."""
        if self._is_written or self._own is None:
            return
        self._is_written = True
        try:
            await in_thread(partial(_write, self._own, tuple(self._entries)))
        except OSError as error:  # never if the file is in memory
            if not self._fails:
                LOG.error("differing_inputs_not_shared", reason=error.strerror)
            self._fails = True

    async def of(self, name: str, shadow: Shadow) -> list[bytes]:
        """The newest entries of a model in all processes, newest first, as JSON objects.

        Args:
            name: of the model.
            shadow: its setting.
        """
        tag = _tag(name, shadow)
        found = [(e.at, e.content) for e in self._entries if _tag_of(e) == tag]
        if self._others:
            found += await in_thread(partial(_read, self._others, tag))
        found.sort(reverse=True)
        return [content for _, content in found[: shadow.keep]]


def entry_of(compared: Comparison, shadow: Shadow) -> Entry:
    """What is kept of an input."""
    source, target, at = compared.source, compared.target, round(time.time(), 3)
    content = {
        "at": at,
        "result": compared.result,
        "version": source.id.version,
        "prediction": _answer(source.codec, compared.outputs),
        "shadow_prediction": _answer(target.codec, compared.outcome),
        "request": {"inputs": _inputs(source.manifest.inputs, compared.item)},
    }
    written = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Entry(Pair.of(source, target, shadow), at, written)


def _answer(codec: Codec, outcome: Outcome) -> dict[str, object] | None:
    """A prediction or an error as POST /predict answers it; None if it is large."""
    if isinstance(outcome, ItemFailed):
        return {"error": str(outcome), "code": outcome.code}
    return codec.encode(outcome) if _is_small(outcome) else None


def _inputs(specs: Sequence[TensorSpec], item: Item) -> list[dict[str, object]]:
    """The inputs of a request of the Open Inference Protocol, with `data` unless they are large."""
    is_small = _is_small(item.arrays)
    inputs: list[dict[str, object]] = []
    for spec in specs:
        array = item.arrays[spec.name]
        one: dict[str, object] = {
            "name": spec.name,
            "datatype": DATATYPES[spec.dtype],
            "shape": [1, *array.shape],
        }
        inputs.append(one | {"data": array.reshape(-1)} if is_small else one)
    return inputs


def _is_small(arrays: Arrays) -> bool:
    return sum(array.nbytes for array in arrays.values()) <= SMALL_BYTES


def _tag(name: str, shadow: Shadow) -> bytes:
    """What identifies the entries of a model and a setting among all processes."""
    return b"%b %b" % (name.encode(), shadow.model_dump_json().encode())


def _tag_of(entry: Entry) -> bytes:
    return _tag(entry.pair.source.name, entry.pair.shadow)


def _write(file: SharedFile, entries: Collection[Entry]) -> None:
    """Write a line for each: its tag, its time and its content, which has no tabs."""
    lines = (b"%b\t%f\t%b\n" % (_tag_of(each), each.at, each.content) for each in entries)
    file.put(b"".join(lines))


def _read(files: Sequence[SharedFile], tag: bytes) -> list[tuple[float, bytes]]:
    """The time and content of each entry with this tag."""
    lines = [line.split(b"\t") for file in files for line in _content(file).splitlines()]
    return [(float(at), content) for of, at, content in lines if of == tag]


def _content(file: SharedFile) -> bytes:
    for _ in range(READINGS):
        if (content := file.content()) is not None:
            return content
        if not file.read():
            break  # nothing was written yet
        time.sleep(READ_AGAIN_S)
    return b""
