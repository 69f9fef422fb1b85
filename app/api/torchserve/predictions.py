"""TorchServe's inference call: POST or PUT /predictions/NAME[/VERSION].

A bridge for its clients: the whole body is passed to the model, and an answer has what
TorchServe's default handlers return. A handler gets the body as it came, and its answer is sent as
it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from app.api.calls import Call
from app.api.endpoints import Endpoint
from app.api.handlers.call import model_or_handler
from app.api.multipart import FORM, read_files
from app.api.outcomes import failure_of
from app.api.payloads import check_marks, media_type_of, parsed_json
from app.codecs.answers import highest
from app.codecs.base import JSON
from app.errors import ItemFailed
from app.types import Array, Arrays, Item, Outcome

TOP = 5  # number of classes that TorchServe's image_classifier returns
KEY = "data"  # key of an object around the item, and name of a form's field


class PredictionsCall(Call):
    """See `Call`."""

    __slots__ = ("_content_type",)

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        self._content_type = fields.get(b"content-type", b"").decode("latin-1")

    def memo_text(self, body: bytes) -> str | None:
        return f"torchserve|{self._content_type}"

    def read(self, body: bytes) -> list[Item]:
        """See `Call`. JSON is the item itself, or an object whose only key is `data`.

        A form must have one part, which is read as if it were the body.
        """
        codec = self.model.codec
        media_type = media_type_of(codec, self._content_type, body)
        budget = self.budget()
        if media_type == FORM:
            budget.read(len(body))
            (file,) = read_files(self._content_type, body, None, named=False)
            body = file.data
            media_type = media_type_of(codec, file.content_type, body)
        if media_type != JSON:
            return codec.decode_raw(media_type, body, max_items=None, budget=budget)
        items = codec.decode_numbers(KEY, body, max_items=None) if self.on_loop else None
        if items is not None:
            return items
        budget.read(len(body))
        check_marks(body, codec, 1, budget)
        value = parsed_json(body, nan=codec.takes_nan)
        if isinstance(value, dict) and set(value) == {KEY}:
            value = value[KEY]
        return [codec.decode(value, budget)]

    def chosen(self, outputs: Arrays) -> Arrays:
        return self.model.codec.chosen(outputs, None)

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        """The best classes and their scores, or the output; several outputs as an object by name.

        Counted rows are answered as in `/predict`, because the protocol leaves the form open.
        """
        (outcome,) = outcomes
        if isinstance(outcome, ItemFailed):
            raise failure_of(outcomes)
        manifest = self.model.manifest
        first = manifest.outputs[0]
        labels = manifest.codec.score_labels
        content: object
        if labels is not None:
            content = _by_name(labels, outcome[first.name])
        elif any(spec.count is not None for spec in manifest.outputs):
            content = self.model.codec.encode(outcome, None, self.notes[0] if self.notes else None)
        else:
            outputs = {name: np.ascontiguousarray(array) for name, array in outcome.items()}
            content = outputs if len(outputs) > 1 else outputs[first.name]
        return content


def _by_name(labels: Sequence[str], scores: Array) -> dict[str, object]:
    """The best classes with their scores, best first; several with one name have the best score."""
    found: dict[str, object] = {}
    for index in highest(scores, TOP).tolist():
        found.setdefault(labels[index], scores[index])
    return found


CALL = model_or_handler(PredictionsCall)
ENDPOINTS = tuple(
    Endpoint(route, CALL) for route in ("/predictions/{name}", "/predictions/{name}/{version}")
)
