"""Conversion of outcomes to an HTTP body, by media type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import cast

from app.api.outcomes import all_failed, failure_of
from app.errors import ItemFailed
from app.registry.loaded_models import LoadedModel
from app.types import Arrays, Note, Outcome


def json_document(
    model: LoadedModel,
    outcomes: Sequence[Outcome],
    *,
    many: bool,
    top_k: int | None = None,
    notes: Sequence[Note | None] = (),
    pictures: bool = False,
    partial: bool = False,
    collect: Callable[[Iterator[object]], object] = list,
) -> dict[str, object]:
    """`{"model", "version", "prediction" | "predictions"}`; a failed item keeps its place.

    `top_k` is the number of scores to write; None for the manifest's number. `notes` has one note
    for each item, or is empty. With `pictures`, outputs that are pictures are PNG files in base64.
    With `partial` the answer has the number of `failed` items. `collect` makes a list of many
    predictions.

    Raises:
        ItemFailed: if all items failed, without `partial`.
        NotAcceptable: if an output cannot be written as a picture.
    """
    if not partial and all_failed(outcomes):
        raise failure_of(outcomes)
    content: dict[str, object] = {"model": model.id.name, "version": model.id.version}
    if partial:
        content["failed"] = sum(isinstance(each, ItemFailed) for each in outcomes)
    if many:
        content["predictions"] = collect(_places(model, outcomes, top_k, notes, pictures))
    else:
        note = notes[0] if notes else None
        content["prediction"] = _place(model, outcomes[0], top_k, note, pictures)
    return content


def _places(
    model: LoadedModel,
    outcomes: Sequence[Outcome],
    top_k: int | None,
    notes: Sequence[Note | None],
    pictures: bool,
) -> Iterator[object]:
    for index, outcome in enumerate(outcomes):
        yield _place(model, outcome, top_k, notes[index] if notes else None, pictures)


def _place(
    model: LoadedModel, outcome: Outcome, top_k: int | None, note: Note | None, pictures: bool
) -> dict[str, object]:
    """What an item has in the answer: its prediction or its error."""
    if not isinstance(outcome, ItemFailed):
        if pictures:
            return model.codec.encode(outcome, top_k, note, pictures=True)
        return model.codec.encode(outcome, top_k, note)
    place: dict[str, object] = {"error": str(outcome), "code": outcome.code}
    if outcome.details:
        place["details"] = outcome.details
    return place


def binary_parts(
    model: LoadedModel, media_type: str, outcomes: Sequence[Outcome], *, many: bool
) -> Iterator[memoryview]:
    """The predictions as one array, in parts.

    Raises:
        ItemFailed: if any item failed, which a binary answer cannot show.
        NotAcceptable: if the predictions differ in shape, or cannot be written as a picture.
    """
    if any(isinstance(outcome, ItemFailed) for outcome in outcomes):
        raise failure_of(outcomes)
    arrays = [cast(Arrays, outcome) for outcome in outcomes]
    return model.codec.encode_raw(media_type, arrays, many=many)
