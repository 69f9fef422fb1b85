"""Items with known correct answers, which the server gave before the load."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from loadtests.traffic.answers import (
    HALF,
    PICTURE,
    CorrectAnswer,
    Judge,
    WrongAnswer,
    distinguishable_share,
    wider,
)
from loadtests.traffic.calls import JSON, failure
from loadtests.traffic.payloads import (
    Template,
    can_be_aligned,
    draw_item,
    json_template,
    npy_template,
    places_of,
    raw_template,
)
from loadtests.traffic.pictures import draw_picture, png
from loadtests.traffic.sentences import text_json
from loadtests.traffic.target import Reply, Target, TargetError, exchange
from models.codec_specs import ImageCodecSpec, PicturePreprocess, TextCodecSpec
from models.inputs.preprocess import preprocess
from models.tensors import Array, Arrays, TensorSpec, Tolerance

REFERENCES = 64
MIN_REFERENCES = 8
MOST_NUMBERS = 2_000_000  # in all references together, so there are fewer large items
SIDE = 64  # of a picture to draw, in pixels, if it may have any size
SEED = 0  # every process queries the same items
MIN_DISTINGUISHABLE = 0.5
log = logging.getLogger(__name__)

# Sends (path, headers, body) and returns the answer.
Send = Callable[[str, Mapping[str, str], bytes], Reply]


class RequestRejected(TargetError):
    """The server rejected the request as invalid, or could not answer it."""


@dataclass(frozen=True, slots=True)
class ReferenceItem:
    """An item, its bodies, and its correct answer.

    Attributes:
        text: its JSON value, in variants with the same answer.
        raw: its bytes, in the same variants; None for several inputs, and for text.
        npy: an .npy file, in the same variants; None as for `raw`.
        answer: the answer to the unchanged item.
        variant_answer: the answer to its variants; for float16 inputs with a wider tolerance.
    """

    text: Template
    raw: Template | None
    npy: Template | None
    answer: CorrectAnswer
    variant_answer: CorrectAnswer


@dataclass(frozen=True, slots=True)
class PictureReference:
    """A picture and its correct answers.

    Attributes:
        pixels: uint8 [height, width] or [height, width, 3].
        answer: the answer to the unchanged picture.
        variant_answer: the answer with a few changed grey levels, with a wider tolerance.
    """

    pixels: Array
    file: bytes
    answer: CorrectAnswer
    variant_answer: CorrectAnswer


@dataclass(frozen=True, slots=True)
class References:
    """All references; small items are many, so that few answers are similar.

    Attributes:
        judge: of this model's answers.
        pictures: empty if the model accepts no pictures.
    """

    judge: Judge
    items: tuple[ReferenceItem, ...]
    pictures: tuple[PictureReference, ...]

    def describe(self) -> str:
        """Describe their number, and whether swapped answers would be noticed."""
        share = self.distinguishable_share
        warning = "" if share >= MIN_DISTINGUISHABLE else ": swapped answers may not be noticed"
        return (
            f"{len(self.items)} reference inputs; of their answers, {share:.1%} of the pairs can "
            f"be told apart{warning}"
        )

    @property
    def distinguishable_share(self) -> float:
        """Return the share of the pairs of answers that differ enough."""
        return distinguishable_share([reference.variant_answer for reference in self.items])


def ask(target: Target, send: Send | None = None) -> References:
    """Query the server for some items, one at a time; it should be idle otherwise.

    Args:
        target: the model to query.
        send: sends a request; None: each on a separate connection.

    Raises:
        TargetError: if the server does not answer with a prediction in its manifest's form.
    """
    send = send or (lambda path, headers, body: exchange(target.url, "POST", path, headers, body))
    try:
        return _ask(target, send, aligned=False)
    except RequestRejected as error:
        if not can_be_aligned(target.inputs):
            raise
        log.warning("%s; trying again with one size for free dimensions in all inputs", error)
        return _ask(target, send, aligned=True)


def _ask(target: Target, send: Send, *, aligned: bool) -> References:
    judge, codec = Judge(target), target.codec
    if isinstance(codec, TextCodecSpec):
        if codec.task == "classify-tokens":
            raise TargetError(f"{target.model} returns spans of text, which are not compared here")
        texts = (text_json(codec, number) for number in range(_count(target)))
        return References(judge, tuple(_text(target, judge, send, text) for text in texts), ())
    rng = np.random.default_rng(SEED)
    items, pictures = list[Arrays](), list[PictureReference]()
    for _ in range(_count(target)):
        if isinstance(codec, ImageCodecSpec) and codec.input is None:
            pixels = draw_picture(_at_small_size(codec, target.inputs), rng)
            pictures.append(_picture(target, judge, send, pixels))
            array = preprocess(pictures[-1].file, codec.preprocess)
            items.append({target.inputs[0].name: array})
        else:
            items.append(draw_item(target.inputs, rng, aligned=aligned))
    return References(
        judge, tuple(_reference(target, judge, send, item) for item in items), tuple(pictures)
    )


def _at_small_size(codec: ImageCodecSpec, inputs: Sequence[TensorSpec]) -> PicturePreprocess:
    """Return how pictures are prepared; if they are not scaled, with a small size to draw."""
    how = codec.preprocess
    if how.fit != "none":
        return how
    _, *sides = (max(axis.least, min(SIDE, axis.most)) for axis in codec.input_of(inputs).axes)
    return how.model_copy(update=dict(zip(("height", "width"), sides, strict=True)))


def _reference(target: Target, judge: Judge, send: Send, item: Arrays) -> ReferenceItem:
    places = places_of(item)
    text = json_template(item, places)
    prediction = _predict(target, send, JSON, b'{"input":%b}' % text.fill(0))
    single = next(iter(item.values())) if len(item) == 1 else None
    half = any(array.dtype == np.float16 for array in item.values())
    tolerance = judge.tolerance
    return ReferenceItem(
        text=text,
        raw=None if single is None else raw_template(single, places),
        npy=None if single is None else npy_template(single, places),
        answer=_correct_answer(judge, prediction, tolerance),
        variant_answer=_correct_answer(
            judge, prediction, wider(tolerance, HALF) if half else tolerance
        ),
    )


def _text(target: Target, judge: Judge, send: Send, text: bytes) -> ReferenceItem:
    """Query a text, without variants, because any change would change the answer."""
    prediction = _predict(target, send, JSON, b'{"input":%b}' % text)
    answer = _correct_answer(judge, prediction, judge.tolerance)
    return ReferenceItem(Template((text,), ()), None, None, answer, answer)


def _picture(target: Target, judge: Judge, send: Send, pixels: Array) -> PictureReference:
    file = png(pixels)
    prediction = _predict(target, send, "image/png", file)
    exact = _correct_answer(judge, prediction, judge.tolerance)
    variant_answer = _correct_answer(judge, prediction, wider(judge.tolerance, PICTURE))
    return PictureReference(pixels, file, exact, variant_answer)


def _correct_answer(judge: Judge, prediction: object, tolerance: Tolerance) -> CorrectAnswer:
    try:
        return judge.correct_answer(prediction, tolerance)
    except WrongAnswer as error:
        raise TargetError(f"the idle server gave a wrong answer: {error}") from error


def _predict(target: Target, send: Send, content_type: str, body: bytes) -> object:
    path = target.path("predict")
    reply = send(path, {"Content-Type": content_type}, body)
    if reply.status != 200:
        raise RequestRejected(
            f"the idle server refused {path}: {failure(reply.status, reply.body)}"
        )
    try:
        return orjson.loads(reply.body)["prediction"]
    except (orjson.JSONDecodeError, TypeError, KeyError) as error:
        raise TargetError(f"the idle server's answer to {path} has no prediction") from error


def _count(target: Target) -> int:
    numbers = sum(math.prod(max(axis.least, 1) for axis in spec.axes) for spec in target.inputs)
    return max(MIN_REFERENCES, min(REFERENCES, MOST_NUMBERS // max(1, numbers)))
