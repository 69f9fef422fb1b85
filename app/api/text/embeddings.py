"""Texts to vectors: OpenAI's POST /v1/embeddings, infinity's /embeddings, TEI's /embed."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from app.api.endpoints import Endpoint
from app.api.text.body import TextCall
from app.api.text.fields import field, flag
from app.codecs.values import short
from app.errors import InvalidInput
from app.types import Array, Item, Outcome
from models.choices import TextTask

MAX_INPUTS = 2048  # OpenAI's limit for one request
FIELDS = frozenset(("input", "model", "encoding_format", "dimensions", "user"))
FORMATS = ("float", "base64")


class EmbeddingsCall(TextCall):
    """See `Call`: OpenAI's call. Like OpenAI, it rejects fields that are not defined.

    Attributes:
        size: size of the vectors; None for the model's size.
    """

    __slots__ = ("_in_base64", "size")
    tasks: ClassVar[tuple[TextTask, ...]] = ("embed",)

    def read_document(self, document: dict[str, Any]) -> list[Item]:
        self.check_fields(document)
        wanted = f"one of {', '.join(FORMATS)}"
        given = field(document, "encoding_format", wanted, lambda given: given in FORMATS)
        self._in_base64 = given == "base64"
        self.read_size(document)
        return self.items_of_inputs(document, "input", MAX_INPUTS)

    def items_of_inputs(
        self, document: dict[str, Any], name: str, most: int | None = None
    ) -> list[Item]:
        """The items of a field: one text or several, or token ids of one text or of several.

        Raises:
            PayloadTooLarge, TooLongForLoop: see `read`.
            InvalidInput: if there are no items, more than `most`, or an invalid one.
        """
        given = document.get(name)
        one = not isinstance(given, list) or is_tokens(given)
        values: list[object] = [given] if one else cast(list[object], given)
        if not values:
            raise InvalidInput(f"{name!r} must not be empty", [{"param": name}])
        if most is not None and len(values) > most:
            raise InvalidInput(
                f"{name!r} has {len(values)} texts, the limit is {most}", [{"param": name}]
            )
        self.check_count(values)
        places: Callable[[int], str] = lambda index: name if one else f"{name}[{index}]"  # noqa: E731
        for index, value in enumerate(values):
            self._check_input(value, name, places(index))
        return self.items_of(document, values, places)

    def _check_input(self, value: object, name: str, place: str) -> None:
        """Check a text, or its token ids before they become an array."""
        if not isinstance(value, str | list):
            raise InvalidInput(
                f"{name!r} must be a string, a list of strings, a list of token ids, or a list of "
                "lists of token ids",
                [{"param": name}],
            )
        if not value:
            raise InvalidInput(f"{name!r} must not contain an empty text", [{"param": name}])
        if isinstance(value, list) and len(value) > self._most_ids():
            got, limit = len(value), self._most_ids()
            raise InvalidInput(
                f"{place!r} has {got} token ids, the limit of the model is {limit}",
                [{"got": got, "limit": limit, "param": name}],
            )

    def _most_ids(self) -> int:
        manifest = self.model.manifest
        ids = getattr(manifest.codec, "ids", None)
        return next(spec.axes[0].most for spec in manifest.inputs if spec.name == ids)

    def check_fields(self, document: dict[str, Any]) -> None:
        """Reject fields that OpenAI does not define.

        Raises:
            InvalidInput: with the name of one of them.
        """
        for name in document:
            if name not in FIELDS:
                raise InvalidInput(
                    f"Unrecognized request argument supplied: {short(name)}; this call accepts "
                    f"{', '.join(sorted(FIELDS))}"
                )
        field(document, "user", "a string", lambda given: isinstance(given, str))

    def read_size(self, document: dict[str, Any]) -> None:
        """Read `dimensions`.

        Raises:
            InvalidInput: if the model has no vectors of that size.
        """
        most = self.model.manifest.outputs[0].item_shape[-1]
        wanted = f"a whole number from 1 to {most}, the size of this model's vectors"
        self.size: int | None = field(
            document, "dimensions", wanted, lambda given: type(given) is int and 1 <= given <= most
        )

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        return self.listed("list", "data", collect(self._places(self.arrays_of(outcomes))))

    def _places(self, arrays: Sequence[Array]) -> Iterator[object]:
        for index, array in enumerate(arrays):
            vector = shortened(array, self.size)
            place = {"object": "embedding", "index": index, "embedding": self._shown(vector)}
            note = self.notes[index] if self.notes else None
            if note is not None and note.cut:
                place["details"] = {"tokens": note.tokens, "cut": note.cut}
            yield place

    def _shown(self, vector: Array) -> object:
        if not self._in_base64:
            return vector
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


class InfinityEmbeddingsCall(EmbeddingsCall):
    """See `Call`: infinity's call. Other fields are ignored; size 0 means the whole vector."""

    __slots__ = ()

    def check_fields(self, document: dict[str, Any]) -> None:
        """Reject modalities other than text."""
        field(document, "modality", "text", lambda given: given == "text")

    def read_size(self, document: dict[str, Any]) -> None:
        if document.get("dimensions") == 0:
            document["dimensions"] = None
        super().read_size(document)


class EmbedCall(EmbeddingsCall):
    """See `Call`: TEI's call, whose answer has only the vectors."""

    __slots__ = ("_normalize",)

    def read_document(self, document: dict[str, Any]) -> list[Item]:
        self._in_base64 = False
        self._normalize = flag(document, "normalize", default=True)
        if document.get("prompt_name") is not None:
            raise InvalidInput(
                "'prompt_name' is not supported: the prompt of a model is set at its export"
            )
        self.read_size(document)
        return self.items_of_inputs(document, "inputs")

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        return collect(self._vectors(self.arrays_of(outcomes)))

    def _vectors(self, arrays: Sequence[Array]) -> Iterator[object]:
        for array in arrays:
            vector = shortened(array, self.size)
            yield normalized(vector) if self._normalize else vector


def is_tokens(given: object) -> bool:
    """Whether a value is the token ids of one text."""
    return isinstance(given, list) and bool(given) and type(given[0]) is int


def shortened(vector: Array, size: int | None) -> Array:
    """The first `size` numbers, scaled to length 1; the unchanged vector if `size` is None."""
    if size is None or size == len(vector):
        return vector
    return normalized(vector[:size])


def normalized(vector: Array) -> Array:
    """A vector of length 1 in the same direction; zeros stay zeros."""
    length = np.linalg.norm(vector)
    return vector / length if length > 0 else np.ascontiguousarray(vector)


OPENAI_ENDPOINTS = (
    Endpoint("/v1/embeddings", EmbeddingsCall, many=True),
    Endpoint("/embeddings", InfinityEmbeddingsCall, many=True),
)
TEI_ENDPOINTS = (Endpoint("/embed", EmbedCall, many=True),)
