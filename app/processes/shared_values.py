"""Values of metrics that the processes of a server share: each writes its own file, all read.

Replaces the multiprocess mode of prometheus_client, which maps files of a folder: if that is on a
full disk, a new series ends the process with SIGBUS, and a killed server leaves it behind.

A file has the length of its entries in 8 bytes, then the entries, which are only appended: the
length of a key in 8 bytes, the key in JSON, blanks to a multiple of 8 bytes, and the value.
"""

from __future__ import annotations

import functools
import json
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import structlog
from prometheus_client.samples import Exemplar, Sample
from prometheus_client.utils import floatToGoString

from app.shared_file import SharedFile

LOG = structlog.get_logger(__name__)
LENGTH = struct.Struct("<Q")
VALUE = struct.Struct("<d")
GONE = b"\xff" * VALUE.size  # in place of a value: not a number, and not the one of Python
COUNTS = ("counter", "histogram")  # kinds that outlive their process; the others are gauges
BUCKET_BOUND = "le"
# How the values of two processes are merged, by the kind of a series; a gauge's is its mode.
MERGE: Mapping[str, Callable[[float, float], float]] = {
    "counter": float.__add__,
    "histogram": float.__add__,
    "livesum": float.__add__,
    "livemax": max,
    "livemin": min,
}
Labels = tuple[tuple[str, str], ...]


class OwnValues:
    """The values of this process; continues the counts of an earlier one with the same file.

    Args:
        file: written by this process only.
    """

    def __init__(self, file: SharedFile) -> None:
        self.lock = threading.Lock()
        self._file = file
        self._fails = False
        data = file.read() or LENGTH.pack(0)
        # Without entries of which a killed process wrote only a part.
        self.entries = bytearray(data[: LENGTH.size + LENGTH.unpack_from(data)[0]])
        self._positions = dict(_entries(self.entries))

    def value(  # the arguments are those of prometheus_client
        self,
        kind: str,
        family: str,
        name: str,
        labels: Sequence[str],
        label_values: Sequence[str],
        _help: str,
        multiprocess_mode: str = "",
        **_: object,
    ) -> Value:
        """Make a value of a metric; use this method as prometheus_client's `ValueClass`."""
        pairs = sorted(zip(labels, label_values, strict=True))
        key = json.dumps([multiprocess_mode or kind, family, name, pairs]).encode()
        with self.lock:
            if key not in self._positions:
                self.entries += LENGTH.pack(len(key)) + key + b" " * (-len(key) % 8)
                self._positions[key] = len(self.entries)
                self.entries += VALUE.pack(0.0)
                LENGTH.pack_into(self.entries, 0, len(self.entries) - LENGTH.size)
            return Value(self, self._positions[key])

    def write(self) -> None:
        """Write all values to the file; those that a full disk cannot take are written later."""
        with self.lock:
            data = bytes(self.entries)
        try:
            self._file.write(data[LENGTH.size :], LENGTH.size)
            self._file.write(data[: LENGTH.size])  # last: a reader finds no half of an entry
        except OSError as error:  # never if the file is in memory
            if not self._fails:
                LOG.error("metrics_not_written", reason=error.strerror)
            self._fails = True
        else:
            self._fails = False


class Value:
    """One value, with the methods that prometheus_client calls.

    Args:
        home: has the entry.
        at: where its value is.
    """

    def __init__(self, home: OwnValues, at: int) -> None:
        self._home = home
        self._at = at
        gone = home.entries[at : at + VALUE.size] == GONE
        self._amount = 0.0 if gone else VALUE.unpack_from(home.entries, at)[0]
        VALUE.pack_into(home.entries, at, self._amount)

    def inc(self, amount: float) -> None:
        """Add an amount."""
        with self._home.lock:
            self._amount += amount
            VALUE.pack_into(self._home.entries, self._at, self._amount)

    def set(self, value: float, timestamp: float | None = None) -> None:
        """Replace the value; no mode needs the time."""
        with self._home.lock:
            self._amount = value
            VALUE.pack_into(self._home.entries, self._at, value)

    def get(self) -> float:
        return self._amount

    def set_exemplar(self, exemplar: Exemplar | None) -> None:
        """Ignore the exemplar: processes share none."""

    def get_exemplar(self) -> Exemplar | None:
        """None: processes share no exemplars."""


def forget_gauges(file: SharedFile) -> None:
    """Remove the gauges of a process that has ended; its counts stay."""
    data = bytearray(file.read())
    for key, at in _entries(data):
        if _parsed(key)[0] not in COUNTS:
            data[at : at + VALUE.size] = GONE
    file.write(bytes(data))


def merged(files: Iterable[SharedFile]) -> dict[str, list[Sample]]:
    """The samples of each metric, merged from all processes."""
    values: dict[bytes, float] = {}
    for file in files:
        data = file.read()
        for key, at in _entries(data):
            if data[at : at + VALUE.size] != GONE:
                (value,) = VALUE.unpack_from(data, at)
                values[key] = MERGE[_parsed(key)[0]](values[key], value) if key in values else value
    # Samples with the same labels follow each other, as OpenMetrics requires of a histogram.
    found: dict[str, dict[Labels, list[Sample]]] = defaultdict(lambda: defaultdict(list))
    buckets: dict[tuple[str, Labels], list[tuple[float, float]]] = defaultdict(list)
    for key, value in values.items():
        kind, family, name, labels = _parsed(key)
        bound = dict(labels).get(BUCKET_BOUND) if kind == "histogram" else None
        if bound is None:
            found[family][labels].append(Sample(name, dict(labels), value))
        else:
            others = tuple(each for each in labels if each[0] != BUCKET_BOUND)
            buckets[family, others].append((float(bound), value))
    for (family, labels), counts in buckets.items():
        found[family][labels] += _cumulative(family, labels, counts)
    return {
        family: [each for of in groups.values() for each in of] for family, groups in found.items()
    }


def _cumulative(family: str, labels: Labels, counts: list[tuple[float, float]]) -> Iterator[Sample]:
    total = 0.0
    for bound, count in sorted(counts):
        total += count
        told = dict(labels) | {BUCKET_BOUND: floatToGoString(bound)}  # type: ignore[no-untyped-call]
        yield Sample(f"{family}_bucket", told, total)
    yield Sample(f"{family}_count", dict(labels), total)


def _entries(data: bytes | bytearray) -> Iterator[tuple[bytes, int]]:
    """Each key, and where its value is."""
    end = LENGTH.size + LENGTH.unpack_from(data)[0] if data else 0
    at = LENGTH.size
    while at < end:
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        key = bytes(data[at : at + length])
        at += length + -length % 8
        yield key, at
        at += VALUE.size


@functools.cache  # as many as there are series
def _parsed(key: bytes) -> tuple[str, str, str, Labels]:
    """Kind, metric, name of the sample, and labels."""
    kind, family, name, labels = json.loads(key)
    return kind, family, name, tuple((label, value) for label, value in labels)
