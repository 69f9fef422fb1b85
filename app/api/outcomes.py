"""Conversion of outcomes to answers, for every protocol."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Final

import orjson

from app.codecs.base import JSON
from app.codecs.places import Places, at_once
from app.errors import BackendFailed, Detail, ItemFailed, PayloadTooLarge
from app.types import Note, Outcome

# Bound once: otherwise each answer would look them up by name.
_dumps: Final = orjson.dumps
_NUMPY: Final = orjson.OPT_SERIALIZE_NUMPY
MAX_CLASSES = 1 << 14  # for all items of a request: writing them takes about 20 ms
MAX_DRAWN_SCORES = 1 << 28  # for all items of a request: takes a thread two to four seconds
JSON_HEADERS = ((b"content-type", JSON.encode()),)


def check_answer(outcomes: Sequence[Outcome], limit: int) -> int:
    """Reject an answer that is too large; returns the bytes of its arrays.

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
    return size


def check_mapped(
    places: Places,
    outcomes: Sequence[Outcome],
    notes: Sequence[Note | None],
    limit: int,
    *,
    drawn: bool,
) -> int:
    """Reject an answer that is too large once it is mapped; returns the bytes of its arrays.

    Raises:
        PayloadTooLarge: with both numbers.
    """
    size = 0
    for outcome, note in zip(outcomes, notes, strict=True):
        size += places.size_of(outcome, note, drawn=drawn)
    check_mapped_size(places, size, limit)
    scores = sum(map(places.scores_of, outcomes, notes)) if drawn else 0
    if scores > MAX_DRAWN_SCORES:
        raise PayloadTooLarge(
            f"drawing these classes needs {scores} scores, the limit is {MAX_DRAWN_SCORES}; send "
            "smaller pictures, or fewer at once"
        )
    return size


def check_mapped_size(places: Places, size: int, limit: int) -> None:
    """Reject an answer whose arrays would have this many bytes.

    Raises:
        PayloadTooLarge: with both numbers.
    """
    if size > limit:
        raise PayloadTooLarge(
            f"with masks in the size of the pictures the answer would have {size} bytes of numbers,"
            f" the limit is {limit}; {places.smaller}"
        )


def mapped(
    places: Places, outcomes: Sequence[Outcome], notes: Sequence[Note | None], *, drawn: bool
) -> list[Outcome]:
    """The outcomes in the callers' pictures; items that were no pictures stay as they are."""
    return at_once(mapped_in_steps(places, outcomes, notes, lambda _: None, drawn=drawn))


def mapped_in_steps(
    places: Places,
    outcomes: Iterable[Outcome],
    notes: Sequence[Note | None],
    made: Callable[[int], None],
    *,
    drawn: bool,
) -> Generator[bytes, None, list[Outcome]]:
    """The same, in quick steps, each of which yields nothing, as bytes.

    Args:
        places: of the model.
        outcomes: taken one by one.
        notes: one for each.
        made: called with the bytes of each item's arrays before they are made; may raise.
        drawn: whether the answer has PNG files, see `Places`.
    """
    found: list[Outcome] = []
    for outcome, note in zip(outcomes, notes, strict=True):
        made(places.size_of(outcome, note, drawn=drawn))
        if isinstance(outcome, ItemFailed) or note is None or note.image is None:
            found.append(outcome)
        else:
            found.append((yield from places.steps(outcome, note.image, drawn=drawn)))
    return found


def check_classes(classes: int, items: int, instead: str) -> None:
    """Reject a request for more labelled scores than the event loop can write.

    Args:
        classes: number of labelled scores of all items.
        items: number of items.
        instead: what to request instead.

    Raises:
        PayloadTooLarge: with both numbers.
    """
    if classes > MAX_CLASSES:
        raise PayloadTooLarge(
            f"{classes} classes of {items} items, the limit is {MAX_CLASSES}; {instead}"
        )


def shown(outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Outcomes, with the model's own error text in the details of failed items."""
    return [
        BackendFailed(str(each), [{"model_error": each.reason}])
        if isinstance(each, BackendFailed) and each.reason
        else each
        for each in outcomes
    ]


def all_failed(outcomes: Sequence[Outcome]) -> bool:
    """Whether no item has a prediction."""
    for each in outcomes:  # noqa: SIM110  # usually ends at the first, without a generator
        if not isinstance(each, ItemFailed):
            return False
    return True


def failure_of(outcomes: Sequence[Outcome]) -> ItemFailed:
    """The error for an answer that cannot show which items failed; at least one did."""
    failures = [(i, o) for i, o in enumerate(outcomes) if isinstance(o, ItemFailed)]
    first = failures[0][1]
    if len(outcomes) == 1:
        return first
    details: list[Detail] = [
        {"index": index, "code": each.code, **(each.details[0] if each.details else {})}
        for index, each in failures
    ]
    return type(first)(f"{len(failures)} of {len(outcomes)} items failed: {first}", details)


def dumped(content: object) -> bytes:
    """The JSON of an answer, whose arrays must be C-contiguous."""
    return _dumps(content, None, _NUMPY)
