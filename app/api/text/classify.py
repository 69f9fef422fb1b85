"""POST /classify: labels of texts and their scores, as in infinity; also with TEI's `inputs`.

infinity's requests have `input`, a list of texts. `inputs` is the field of TEI's /predict, a path
of the native call here: a text, a pair of texts, or a list of lists of one text or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from app.api.endpoints import Endpoint
from app.api.outcomes import check_classes
from app.api.text.body import TextCall
from app.api.text.fields import one_of
from app.api.text.scores import scores_of, wants_raw
from app.errors import InvalidInput
from app.registry.loaded_models import LoadedModel
from app.types import Array, Item, Outcome

INPUT, INPUTS = "input", "inputs"


class ClassifyCall(TextCall):
    """See `Call`."""

    __slots__ = ("_key", "_many", "_raw")
    tasks = ("classify",)

    def read_document(self, document: dict[str, Any]) -> list[Item]:
        key = self._key = one_of(document, INPUTS, INPUT)
        self._raw = wants_raw(document, self.model)
        if key == INPUT:
            self._many, values = True, self.texts_of(document, INPUT)
            return items_to_label(self, document, key, values)
        self._many, items = items_of_sequences(self, document)
        return items

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        places = labelled(self.model, self.arrays_of(outcomes), raw=self._raw)
        if self._key == INPUTS:
            return collect(places) if self._many else next(places)
        return self.listed("classify", "data", collect(places))


def items_of_sequences(call: TextCall, document: Mapping[str, Any]) -> tuple[bool, list[Item]]:
    """Whether TEI's `inputs` is a batch, and its items.

    Raises:
        PayloadTooLarge: if there are too many items, or labels of them.
        InvalidInput: if the field, or an item, is invalid.
    """
    given = document.get(INPUTS)
    if isinstance(given, list):
        call.check_count(given)
    is_batch, values = sequences_of(given)
    return is_batch, items_to_label(call, document, INPUTS, values)


def items_to_label(
    call: TextCall, document: Mapping[str, Any], key: str, values: Sequence[object]
) -> list[Item]:
    """The items of the values of a field.

    Raises:
        PayloadTooLarge: if the answer would have too many labels.
        InvalidInput: if a value is invalid.
    """
    count, labels = len(values), call.model.manifest.outputs[0].item_shape[0]
    check_classes(count * labels, count, "send fewer texts at once")
    return call.items_of(document, values, lambda index: f"{key}[{index}]")


def labelled(
    model: LoadedModel, arrays: Sequence[Array], *, raw: bool, top: int | None = None
) -> Iterator[object]:
    """The labels of each item with their scores, highest first; the best `top` if it is given."""
    labels = model.manifest.codec.labels
    for array in arrays:
        (scores,) = scores_of(model, [array], raw=raw)
        yield ranked(scores.reshape(-1), labels)[:top]


def sequences_of(given: object) -> tuple[bool, list[object]]:
    """Whether TEI's `inputs` is a batch, and its texts or pairs.

    Raises:
        InvalidInput: if it is anything else.
    """
    if isinstance(given, str):
        return False, [given]
    if isinstance(given, list) and given:
        if isinstance(given[0], str):
            return False, [_sequence(given)]
        return True, [_sequence(each) for each in given]
    raise _no_sequences()


def _sequence(given: object) -> object:
    if (
        not isinstance(given, list)
        or len(given) not in (1, 2)
        or not all(type(each) is str for each in given)
    ):
        raise _no_sequences()
    return given[0] if len(given) == 1 else given


def _no_sequences() -> InvalidInput:
    return InvalidInput(
        "'inputs' must be a string, a pair of strings [a, b], or a list of lists with one string "
        "or a pair each; or send 'input', a list of strings",
        [{"param": INPUTS}],
    )


def ranked(scores: Array, labels: Sequence[str] | None) -> list[dict[str, Any]]:
    """Every label with its score, highest first; without labels, their indices."""
    return [
        {"score": scores[index], "label": labels[index] if labels else f"LABEL_{index}"}
        for index in np.argsort(-scores, kind="stable").tolist()
    ]


ENDPOINTS = (Endpoint("/classify", ClassifyCall, many=True),)
