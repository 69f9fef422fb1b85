"""From outcomes to an HTTP body, by media type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import orjson

from app.api.payloads import JSON
from app.codecs.base import NPY, OCTET_STREAM
from app.errors import BackendFailed, Detail, ItemFailed, PayloadTooLarge
from app.registry.loaded_models import LoadedModel
from app.types import Arrays, Outcome

JSON_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def answer_media_type(accept: str) -> str:
    """The supported media type that Accept prefers; JSON where it names none."""
    if not accept or accept == "*/*":
        return JSON
    best, best_quality = JSON, 0.0
    for part in accept.lower().split(","):
        name, *parameters = (each.strip() for each in part.split(";"))
        quality = next((_quality(each[2:]) for each in parameters if each[:2] == "q="), 1.0)
        if name in (JSON, OCTET_STREAM, NPY) and quality > best_quality:
            best, best_quality = name, quality
    return best


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def check_answer(outcomes: Sequence[Outcome], limit: int) -> None:
    """Reject an answer so large that writing it would block the event loop.

    Raises:
        PayloadTooLarge: with both numbers.
    """
    size = 0
    for outcome in outcomes:
        if not isinstance(outcome, ItemFailed):
            for array in outcome.values():
                size += array.nbytes
    if size > limit:
        raise PayloadTooLarge(
            f"the answer would have {size} bytes of numbers, the limit is {limit}; "
            "ask for fewer items at once"
        )


def shown(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Outcomes, with the model's own error text in the details of failed items."""
    return [
        BackendFailed(str(each), [{"model_error": each.reason}])
        if isinstance(each, BackendFailed) and each.reason
        else each
        for each in outcomes
    ]


def json_answer(
    model: LoadedModel, outcomes: Sequence[Outcome], *, many: bool, top_k: int | None = None
) -> bytes:
    """`{"model", "version", "prediction" | "predictions"}`; a failed item keeps its place.

    `top_k` is the number of scores to write; None: as the manifest says.

    Raises:
        ItemFailed: if the only item, or every one of them, failed.
    """
    predicted = False
    places: list[object] = []
    for outcome in outcomes:
        if isinstance(outcome, ItemFailed):
            place: dict[str, object] = {"error": str(outcome), "code": outcome.code}
            if outcome.details:
                place["details"] = outcome.details
            places.append(place)
        else:
            places.append(model.codec.encode(outcome, top_k))
            predicted = True
    if not predicted:
        raise _failed(outcomes)
    head = {"model": model.id.name, "version": model.id.version}
    last = {"predictions": places} if many else {"prediction": places[0]}
    return orjson.dumps(head | last, option=JSON_OPTIONS)


def binary_answer(
    model: LoadedModel, media_type: str, outcomes: Sequence[Outcome], *, many: bool
) -> bytes:
    """The predictions as one array.

    Raises:
        ItemFailed: if any item failed: a binary answer cannot say so.
        NotAcceptable: if the model's answer is not one array.
    """
    if any(isinstance(outcome, ItemFailed) for outcome in outcomes):
        raise _failed(outcomes)
    arrays = [cast(Arrays, outcome) for outcome in outcomes]
    return model.codec.encode_raw(media_type, arrays, many=many)


def _failed(outcomes: Sequence[Outcome]) -> ItemFailed:
    failures = [(i, o) for i, o in enumerate(outcomes) if isinstance(o, ItemFailed)]
    first = failures[0][1]
    if len(outcomes) == 1:
        return first
    details: list[Detail] = [
        {"index": index, "code": each.code, **(each.details[0] if each.details else {})}
        for index, each in failures
    ]
    return type(first)(f"{len(failures)} of {len(outcomes)} items failed: {first}", details)
