"""Named streams of calls, each with its correct answer."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import TypeAlias

import orjson

from loadtests.traffic.answers import NPY, OCTET_STREAM, CorrectAnswer
from loadtests.traffic.calls import (
    JSON,
    Expectation,
    ExpectedArray,
    ExpectedError,
    ExpectedPredictions,
    LoadCall,
)
from loadtests.traffic.drawing import InputSource, UniqueItems, Variants, WorkloadError
from loadtests.traffic.payloads import Template
from loadtests.traffic.pictures import picture_variants, png, vary_picture
from loadtests.traffic.reference_inputs import ReferenceItem, References
from loadtests.traffic.target import Target
from models.codec_specs import TextCodecSpec

BATCH_ITEMS = 16
ZIPF_EXPONENT = 1.1  # the skew of popular inputs; that of web requests is about 0.6 to 1.2
BAD_SHARE = 0.02
PNG, TEXT = "image/png", "text/plain"
Draw: TypeAlias = Callable[[], LoadCall]  # draws the next call


def unique(source: InputSource) -> Draw:
    """JSON singles, each with a new input that only the model can answer."""
    items = UniqueItems(source)
    return lambda: _single(source, JSON, b'{"input":%b}', *items.draw())


def repeated(source: InputSource) -> Draw:
    """JSON singles of popular inputs, the first far more often than the last (Zipf)."""
    calls = [
        _single(source, JSON, b'{"input":%b}', reference.text.fill(0), reference.answer)
        for reference in source.references.items
    ]
    weights = _zipf(len(calls))
    return lambda: source.random.choices(calls, cum_weights=weights)[0]


def batch(source: InputSource) -> Draw:
    """JSON batches in which half of the items are duplicates; no item is in two batches."""
    items = UniqueItems(source)

    def draw() -> LoadCall:
        distinct = [items.draw() for _ in range(BATCH_ITEMS // 2)]
        picks = [*range(len(distinct))]
        picks += source.random.choices(picks, k=BATCH_ITEMS - len(distinct))
        source.random.shuffle(picks)
        first: dict[int, int] = {}
        twins = [
            (first.setdefault(pick, place), place)
            for place, pick in enumerate(picks)
            if first.setdefault(pick, place) != place
        ]
        correct = [distinct[pick][1] for pick in picks]
        return LoadCall(
            path=source.target.path("batch-predict"),
            headers={"Content-Type": JSON},
            body=b'{"inputs":[%b]}' % b",".join(distinct[pick][0] for pick in picks),
            items=BATCH_ITEMS,
            expected=ExpectedPredictions(source.references.judge, correct, many=True, twins=twins),
        )

    return draw


def binary(source: InputSource, media_type: str) -> Draw:
    """Singles as raw little-endian bytes or .npy files, with answers in the same format.

    Raises:
        WorkloadError: if the model does not accept such bodies.
    """
    target, judge = source.target, source.references.judge
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
    accept = media_type if len(target.outputs) == 1 and target.outputs[0].is_fixed else JSON

    def template(reference: ReferenceItem) -> Template:
        body = reference.raw if media_type == OCTET_STREAM else reference.npy
        if body is None:
            raise WorkloadError("bug: an item of one input has no bytes")
        return body

    references = source.references.items
    variants = Variants(source, tuple(template(each).variants for each in references))

    def draw() -> LoadCall:
        index, number = variants.next()
        correct = references[index].variant_answer
        expected: Expectation = ExpectedArray(judge, correct, accept)
        if accept == JSON:
            expected = ExpectedPredictions(judge, (correct,))
        path = target.path("predict", binary=accept != JSON)
        headers = {"Content-Type": media_type, "Accept": accept}
        return LoadCall(path, headers, template(references[index]).fill(number), 1, expected)

    return draw


def image(source: InputSource) -> Draw:
    """PNG bodies: half of them popular (Zipf), half new.

    Raises:
        WorkloadError: if the model accepts no pictures.
    """
    pictures = source.references.pictures
    if not pictures:
        raise WorkloadError(
            f"{source.target.model} accepts no pictures, its codec: {source.target.codec.kind}"
        )
    weights = _zipf(len(pictures))
    variants = Variants(source, tuple(picture_variants(each.pixels) for each in pictures))

    def draw() -> LoadCall:
        if source.random.random() < 0.5:
            popular = source.random.choices(pictures, cum_weights=weights)[0]
            return _single(source, PNG, b"%b", popular.file, popular.answer)
        index, number = variants.next()
        file = png(vary_picture(pictures[index].pixels, number))
        return _single(source, PNG, b"%b", file, pictures[index].variant_answer)

    return draw


def text(source: InputSource) -> Draw:
    """Single new texts as text/plain.

    Raises:
        WorkloadError: if the model reads no text, or pairs of texts.
    """
    codec = source.target.codec
    if not isinstance(codec, TextCodecSpec) or codec.pairs:
        raise WorkloadError(f"{source.target.model} does not accept single texts")
    items = UniqueItems(source)

    def draw() -> LoadCall:
        item, correct = items.draw()
        return _single(source, TEXT, b"%b", orjson.loads(item).encode(), correct)

    return draw


def bad(source: InputSource) -> Draw:
    """Requests that must be rejected, each with the correct error."""
    deep = b"0"
    for _ in range(len(source.target.inputs[0].item_shape) + 2):
        deep = b"[" + deep + b"]"
    good = source.references.items[0].text.fill(0)
    path, invalid = source.target.path("predict"), ExpectedError(422, "invalid_input")
    bodies = (
        b'{"input":%b}' % deep,  # wrong shape
        b'{"input":%b' % good,  # not closed
        b'{"inputs":[%b]}' % good,  # a batch's body
    )
    calls = [LoadCall(path, {"Content-Type": JSON}, body, 0, invalid) for body in bodies]
    unsupported = ExpectedError(415, "unsupported_media_type")
    calls.append(LoadCall(path, {"Content-Type": "text/csv"}, b"1,2,3", 0, unsupported))
    return lambda: source.random.choice(calls)


def mixed(source: InputSource) -> Draw:
    """All of `SHARES` that suit the model, and some invalid input."""
    parts: list[Draw] = []
    shares = []
    for name, share in SHARES.items():
        try:
            parts.append(WORKLOADS[name](source))
        except WorkloadError:
            continue  # its share goes to the others
        shares.append(share)
    weights, wrong = list(itertools.accumulate(shares)), bad(source)

    def draw() -> LoadCall:
        if source.random.random() < BAD_SHARE:
            return wrong()
        return source.random.choices(parts, cum_weights=weights)[0]()

    return draw


# Parts of a mixed load, by weight; `repeated` suits every model.
SHARES = {"unique": 4, "repeated": 3, "batch": 1, "binary": 2, "image": 2, "text": 2}

WORKLOADS: Mapping[str, Callable[[InputSource], Draw]] = {
    "unique": unique,
    "repeated": repeated,
    "batch": batch,
    "binary": lambda source: binary(source, OCTET_STREAM),
    "npy": lambda source: binary(source, NPY),
    "image": image,
    "text": text,
    "mixed": mixed,
}


def workload(name: str, target: Target, seed: int, references: References) -> Draw:
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
    return make(InputSource(target, references, seed))


def _single(
    source: InputSource, media_type: str, form: bytes, item: bytes, correct: CorrectAnswer | None
) -> LoadCall:
    expected = ExpectedPredictions(source.references.judge, (correct,))
    path = source.target.path("predict")
    return LoadCall(path, {"Content-Type": media_type}, form % item, 1, expected)


def _zipf(count: int) -> list[float]:
    """Return the cumulative weights of `count` items."""
    return list(itertools.accumulate(rank**-ZIPF_EXPONENT for rank in range(1, count + 1)))
