"""Named streams of calls, each with its correct answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Protocol

import orjson

from loadtests.traffic.answers import NPY, OCTET_STREAM, Known
from loadtests.traffic.calls import (
    JSON,
    Call,
    Expectation,
    Predictions,
    RawPrediction,
    Refused,
)
from loadtests.traffic.drawing import Source, UniqueItems, Variants, WorkloadError
from loadtests.traffic.payloads import Template
from loadtests.traffic.pictures import picture_variants, png, vary_picture
from loadtests.traffic.reference_inputs import Reference, References
from loadtests.traffic.target import Target
from models.codec_specs import TextCodecSpec

BATCH_ITEMS = 16
ZIPF_EXPONENT = 1.1  # the skew of popular inputs; that of web requests is about 0.6 to 1.2
BAD_SHARE = 0.02
PNG, TEXT = "image/png", "text/plain"


class Workload(Protocol):
    """An endless stream of calls; see `WORKLOADS`."""

    def draw(self) -> Call:
        """Return the next call."""


class Unique:
    """JSON singles, each with a new input that only the model can answer."""

    def __init__(self, source: Source) -> None:
        self._source, self._items = source, UniqueItems(source)

    def draw(self) -> Call:
        text, known = self._items.draw()
        return _json_single(self._source, text, known)


class Repeated:
    """JSON singles of popular inputs, the first far more often than the last (Zipf)."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._calls = [
            _json_single(source, reference.text.fill(0), reference.known)
            for reference in source.references.items
        ]
        self._weights = _zipf(len(self._calls))

    def draw(self) -> Call:
        return self._source.random.choices(self._calls, cum_weights=self._weights)[0]


class Batch:
    """JSON batches in which half of the items are duplicates; no item is in two batches."""

    def __init__(self, source: Source) -> None:
        self._source, self._items = source, UniqueItems(source)

    def draw(self) -> Call:
        distinct = [self._items.draw() for _ in range(BATCH_ITEMS // 2)]
        picks = [*range(len(distinct))]
        picks += self._source.random.choices(picks, k=BATCH_ITEMS - len(distinct))
        self._source.random.shuffle(picks)
        first: dict[int, int] = {}
        twins = [
            (first.setdefault(pick, place), place)
            for place, pick in enumerate(picks)
            if first.setdefault(pick, place) != place
        ]
        known = [distinct[pick][1] for pick in picks]
        return Call(
            path=self._source.target.path("batch-predict"),
            headers={"Content-Type": JSON},
            body=b'{"inputs":[%b]}' % b",".join(distinct[pick][0] for pick in picks),
            items=BATCH_ITEMS,
            expected=Predictions(self._source.references.judge, known, many=True, twins=twins),
        )


class Binary:
    """Singles as raw little-endian bytes or .npy files, with answers in the same format.

    Raises:
        WorkloadError: if the model does not accept such bodies.
    """

    def __init__(self, source: Source, media_type: str) -> None:
        target, self._source, self._type = source.target, source, media_type
        first = target.inputs[0]
        if len(target.inputs) > 1:
            raise WorkloadError(f"{target.model} has several inputs, which need JSON")
        if media_type == OCTET_STREAM and not first.is_fixed:
            raise WorkloadError(
                f"{target.model} accepts inputs of shape {list(first.shape)}; raw bytes do not "
                "contain free dimensions: use `npy`"
            )
        if not first.dtype.startswith("float"):
            raise WorkloadError(f"{target.model} accepts {first.dtype}, which varies only in JSON")
        fixed = len(target.outputs) == 1 and target.outputs[0].is_fixed
        self._accept = media_type if fixed else JSON
        self._variants = Variants(
            source,
            tuple(self._template(reference).variants for reference in source.references.items),
        )

    def draw(self) -> Call:
        index, number = self._variants.next()
        reference = self._source.references.items[index]
        judge = self._source.references.judge
        expected: Expectation = (
            Predictions(judge, (reference.varied,))
            if self._accept == JSON
            else RawPrediction(judge, reference.varied, self._accept)
        )
        return Call(
            path=self._source.target.path("predict", binary=self._accept != JSON),
            headers={"Content-Type": self._type, "Accept": self._accept},
            body=self._template(reference).fill(number),
            items=1,
            expected=expected,
        )

    def _template(self, reference: Reference) -> Template:
        template = reference.raw if self._type == OCTET_STREAM else reference.npy
        if template is None:
            raise WorkloadError("bug: an item of one input has no bytes")
        return template


class Pictures:
    """PNG bodies: half of them popular (Zipf), half new.

    Raises:
        WorkloadError: if the model accepts no pictures.
    """

    def __init__(self, source: Source) -> None:
        self._source, self._pictures = source, source.references.pictures
        if not self._pictures:
            raise WorkloadError(
                f"{source.target.model} accepts no pictures, its codec: {source.target.codec.kind}"
            )
        self._weights = _zipf(len(self._pictures))
        self._variants = Variants(
            source, tuple(picture_variants(each.pixels) for each in self._pictures)
        )

    def draw(self) -> Call:
        if self._source.random.random() < 0.5:
            popular = self._source.random.choices(self._pictures, cum_weights=self._weights)[0]
            return self._call(popular.file, popular.known)
        index, number = self._variants.next()
        picture = self._pictures[index]
        return self._call(png(vary_picture(picture.pixels, number)), picture.varied)

    def _call(self, file: bytes, known: Known) -> Call:
        return Call(
            path=self._source.target.path("predict"),
            headers={"Content-Type": PNG},
            body=file,
            items=1,
            expected=Predictions(self._source.references.judge, (known,)),
        )


class Texts:
    """Single new texts as text/plain.

    Raises:
        WorkloadError: if the model reads no text, or pairs of texts.
    """

    def __init__(self, source: Source) -> None:
        codec = source.target.codec
        if not isinstance(codec, TextCodecSpec) or codec.pairs:
            raise WorkloadError(f"{source.target.model} does not accept single texts")
        self._source, self._items = source, UniqueItems(source)

    def draw(self) -> Call:
        text, known = self._items.draw()
        return Call(
            path=self._source.target.path("predict"),
            headers={"Content-Type": TEXT},
            body=orjson.loads(text).encode(),
            items=1,
            expected=Predictions(self._source.references.judge, (known,)),
        )


class Bad:
    """Requests that must be rejected, each with the correct error."""

    def __init__(self, source: Source) -> None:
        self._source = source
        deep = b"0"
        for _ in range(len(source.target.inputs[0].item_shape) + 2):
            deep = b"[" + deep + b"]"
        good = source.references.items[0].text.fill(0)
        self._calls = [
            self._call(JSON, b'{"input":%b}' % deep, 422, "invalid_input"),  # wrong shape
            self._call(JSON, b'{"input":%b' % good, 422, "invalid_input"),  # not closed
            self._call(JSON, b'{"inputs":[%b]}' % good, 422, "invalid_input"),  # a batch's body
            self._call("text/csv", b"1,2,3", 415, "unsupported_media_type"),
        ]

    def draw(self) -> Call:
        return self._source.random.choice(self._calls)

    def _call(self, content_type: str, body: bytes, status: int, code: str) -> Call:
        return Call(
            path=self._source.target.path("predict"),
            headers={"Content-Type": content_type},
            body=body,
            items=0,
            expected=Refused(status, code),
        )


class Mixed:
    """All of `SHARES` that suit the model, and some invalid input.

    Raises:
        WorkloadError: if none suits the model.
    """

    def __init__(self, source: Source) -> None:
        self._random = source.random
        self._parts: list[Workload] = []
        weights = []
        for name, share in SHARES.items():
            try:
                self._parts.append(WORKLOADS[name](source))
            except WorkloadError:
                continue  # its share goes to the others
            weights.append(share)
        self._weights = list(itertools.accumulate(weights))
        self._bad = Bad(source)

    def draw(self) -> Call:
        if self._random.random() < BAD_SHARE:
            return self._bad.draw()
        return self._random.choices(self._parts, cum_weights=self._weights)[0].draw()


# Parts of a mixed load, by weight; `repeated` suits every model.
SHARES = {"unique": 4, "repeated": 3, "batch": 1, "binary": 2, "image": 2, "text": 2}

WORKLOADS: Mapping[str, Callable[[Source], Workload]] = {
    "unique": Unique,
    "repeated": Repeated,
    "batch": Batch,
    "binary": lambda source: Binary(source, OCTET_STREAM),
    "npy": lambda source: Binary(source, NPY),
    "image": Pictures,
    "text": Texts,
    "mixed": Mixed,
}


def workload(name: str, target: Target, seed: int, references: References) -> Workload:
    """Create a stream of calls.

    Args:
        name: one of `WORKLOADS`.
        target: the model to load.
        seed: equal seeds give equal streams, different seeds different inputs.
        references: from `loadtests.traffic.reference_inputs.ask`, for the same target.

    Raises:
        WorkloadError: if there is no such workload, or it does not suit the model.
    """
    make = WORKLOADS.get(name)
    if make is None:
        raise WorkloadError(f"no workload is named {name!r}; there are: {', '.join(WORKLOADS)}")
    return make(Source(target, references, seed))


def _json_single(source: Source, text: bytes, known: Known | None) -> Call:
    return Call(
        path=source.target.path("predict"),
        headers={"Content-Type": JSON},
        body=b'{"input":%b}' % text,
        items=1,
        expected=Predictions(source.references.judge, (known,)),
    )


def _zipf(count: int) -> list[float]:
    """Return the cumulative weights of `count` items."""
    return list(itertools.accumulate(rank**-ZIPF_EXPONENT for rank in range(1, count + 1)))
