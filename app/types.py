"""Value objects that the layers pass to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from app.errors import ItemFailed
from models import tensors
from models.padding import size_class
from models.places import Geometry

Array: TypeAlias = tensors.Array
Arrays: TypeAlias = tensors.Arrays

# (name, dtype, shape without the batch axis) per input, -1 for an axis that may be padded: items
# with equal signatures can share a batch.
Signature: TypeAlias = tuple[tuple[str, str, tuple[int, ...]], ...]
# Common to items that wait together: their signature, and the largest length in their class.
Group: TypeAlias = tuple[Signature, int]
# Length of the items, 0 without padding -> items in a batch -> seconds of the batch.
BatchTimes: TypeAlias = Mapping[int, Mapping[int, float]]


class Note(NamedTuple):
    """Facts about an item as it was sent, which its answer needs but the prediction lacks.

    Attributes:
        tokens: number of the item's tokens, including special ones.
        cut: number of tokens of its text that were cut off.
        text: the text, if its tokens are classified.
        spans: the place of each token in the text [tokens, 2]: its first character and the one
            after its last; equal for tokens that are not in the text. None if unknown.
        image: how its picture maps to the model's input, if its answer has places in it.
    """

    tokens: int = 0
    cut: int = 0
    text: str = ""
    spans: Array | None = None
    image: Geometry | None = None


class Item:
    """One input: input name -> C-contiguous array without the batch axis, in manifest order.

    Args:
        arrays: must not be modified any more.
        signature: the signature of the arrays; computed if None.
        length: size along the dimension that may be padded; 0 if its model pads nothing.
        note: facts for the writer of the answer.
    """

    __slots__ = ("arrays", "length", "note", "signature")

    def __init__(
        self,
        arrays: Arrays,
        signature: Signature | None = None,
        length: int = 0,
        note: Note | None = None,
    ) -> None:
        self.arrays = arrays
        self.signature = signature_of(arrays) if signature is None else signature
        self.length = length
        self.note = note

    @property
    def group(self) -> Group:
        """The group in which it waits in the queue."""
        length = self.length
        return self.signature, size_class(length) if length else 0

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays; equal for items with the same signature and length."""
        nbytes = 0
        for array in self.arrays.values():
            nbytes += array.nbytes
        return nbytes


def signature_of(arrays: Arrays) -> Signature:
    """The signature of an item that is never padded."""
    return tuple((name, a.dtype.str, a.shape) for name, a in arrays.items())


# Result of one item: output name -> read-only array without the batch axis, or its failure.
Outcome: TypeAlias = Arrays | ItemFailed


class ModelId(NamedTuple):
    """One version of one model; a tuple, because it is the key of a lookup for every request.

    Attributes:
        revision: how often it was installed again with other settings. Only engine and replicas
            distinguish revisions.
    """

    name: str
    version: int
    revision: int = 0

    @property
    def plain(self) -> ModelId:
        """The version without its revision."""
        return ModelId(self.name, self.version)

    def __str__(self) -> str:
        return f"{self.name}/{self.version}"


@dataclass(frozen=True, slots=True)
class Device:
    """The device of a replica: its kind, `cpu` or `cuda`, and its index among that kind."""

    kind: Literal["cpu", "cuda"]
    index: int = 0

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"


@dataclass(frozen=True, slots=True)
class ServedStep:
    """The form that runs batches of up to `up_to` items (None for any size)."""

    up_to: int | None
    form: str


@dataclass(frozen=True, slots=True)
class Serving:
    """The forms that a backend runs by batch size, and how they were chosen.

    Attributes:
        steps: ascending by `up_to`.
        measured_on: the processor; None if there was no choice.
        measured_by: `export`, or `server` if the artifact's plan does not apply here.
        median_us: form -> batch size -> microseconds of one forward, if the server measured them.
        launches: whether its device works asynchronously; see `LaunchingBackend`.
        prefetches: whether it accepts a second batch while its device runs the first.
    """

    steps: tuple[ServedStep, ...]
    measured_on: str | None = None
    measured_by: Literal["export", "server"] | None = None
    median_us: Mapping[str, Mapping[int, float]] = field(default_factory=dict)
    launches: bool = False
    prefetches: bool = False

    def form_of(self, items: int) -> str:
        """The form that runs a batch of this many items; empty if unknown."""
        for step in self.steps:
            if step.up_to is None or items <= step.up_to:
                return step.form
        return ""


class DeviceTimes(NamedTuple):
    """Times of one batch on a device, in seconds by the device's own clock.

    Copies may overlap the compute of other batches. All are zero if the device has no clock.
    """

    copy_in_s: float = 0.0
    compute_s: float = 0.0
    copy_out_s: float = 0.0


NO_DEVICE_TIMES = DeviceTimes()


class CacheCounts(NamedTuple):
    """How the items of one request were answered; the three add up to the number of items."""

    hit: int = 0
    miss: int = 0
    joined: int = 0


ONE_HIT: Final = CacheCounts(1)
ONE_MISS: Final = CacheCounts(0, 1)
_ONE_JOINED: Final = CacheCounts(0, 0, 1)


def cache_counts(hit: int, miss: int, items: int) -> CacheCounts:
    """Counts of a request: items that were neither hits nor misses have joined."""
    if items == 1:  # nearly all requests: reuse the objects
        return ONE_HIT if hit else ONE_MISS if miss else _ONE_JOINED
    return CacheCounts(hit, miss, items - hit - miss)


def with_one_found(counts: CacheCounts) -> CacheCounts:
    """Counts of a request after the second cache has answered one of its items."""
    misses = min(counts.miss, 1)  # else it has joined the lookup of another request
    return CacheCounts(counts.hit + 1, counts.miss - misses, counts.joined - 1 + misses)


class Answer:
    """One outcome for each item, in request order.

    The times are those of the slowest item; `batch_items` is the size of the largest batch in which
    an item ran, 0 if none ran.
    """

    # Not a NamedTuple, which mypyc would construct through the interpreter.
    __slots__ = ("batch_items", "cache", "compute_s", "outcomes", "queue_s")

    def __init__(
        self,
        outcomes: Sequence[Outcome],
        cache: CacheCounts,
        queue_s: float = 0.0,
        compute_s: float = 0.0,
        batch_items: int = 0,
    ) -> None:
        self.outcomes = outcomes
        self.cache = cache
        self.queue_s = queue_s
        self.compute_s = compute_s
        self.batch_items = batch_items


def frozen_copy(array: Array) -> Array:
    """A read-only, C-contiguous copy that owns its bytes."""
    copy = np.array(array, order="C")
    copy.setflags(write=False)
    return copy


class Profile(NamedTuple):
    """A finished trace.

    Attributes:
        content: in Chrome's format, possibly compressed.
        seconds: the recorded time.
        ended: why the recording ended.
    """

    content: bytes
    seconds: float
    ended: str
