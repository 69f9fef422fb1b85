"""Texts to vectors: POST /v1/embeddings as OpenAI has it, infinity's /embeddings, TEI's /embed."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np

from app.api.endpoints import Endpoint
from app.api.memo import Written
from app.api.outcomes import JSON_HEADERS, dumped
from app.api.text.body import TextCall, flag
from app.codecs.values import short
from app.errors import InvalidInput
from app.registry.loaded_models import LoadedModel
from app.types import Array, Item, Outcome

MAX_INPUTS = 2048  # that OpenAI takes in one request
FIELDS = frozenset(("input", "model", "encoding_format", "dimensions", "user"))
FORMATS = ("float", "base64")


class EmbeddingsCall(TextCall):
    """See `Call`: OpenAI's call. Fields that it does not define are rejected, as OpenAI does.

    Attributes:
        size: of the vectors; None: as the model answers them.
    """

    __slots__ = ("_in_base64", "size")
    tasks = ("embed",)

    def read(self, body: bytes, *, on_loop: bool) -> list[Item]:
        """See `Call`."""
        document = self.document
        self.check_fields()
        given = document.get("encoding_format")
        if given is not None and given not in FORMATS:
            raise InvalidInput(
                f"'encoding_format' must be one of {', '.join(FORMATS)}, got {given!r:.50}",
                [{"param": "encoding_format"}],
            )
        self._in_base64 = given == "base64"
        self.read_size()
        values = inputs_of(document, "input", self.model)
        if len(values) > MAX_INPUTS:
            raise InvalidInput(
                f"'input' has {len(values)} texts, the limit is {MAX_INPUTS}", [{"param": "input"}]
            )
        one = not isinstance(document["input"], list) or is_tokens(document["input"])
        return self.items_of(
            values, lambda index: "input" if one else f"input[{index}]", on_loop=on_loop
        )

    def check_fields(self) -> None:
        """Reject fields that OpenAI does not define.

        Raises:
            InvalidInput: naming one of them.
        """
        for name in self.document:
            if name not in FIELDS:
                raise InvalidInput(
                    f"Unrecognized request argument supplied: {short(name)}; this call takes "
                    f"{', '.join(sorted(FIELDS))}"
                )

    def read_size(self) -> None:
        """Read `dimensions`.

        Raises:
            InvalidInput: the model has no vectors of that size.
        """
        shape = self.model.manifest.outputs[0].item_shape
        given, most = self.document.get("dimensions"), shape[-1]
        if given is not None and not (type(given) is int and 1 <= given <= most):
            raise InvalidInput(
                f"'dimensions' must be a whole number from 1 to {most}, the size of this model's "
                f"vectors, got {given!r:.50}",
                [{"param": "dimensions"}],
            )
        self.size: int | None = given

    def write(self, outcomes: Sequence[Outcome]) -> Written:
        """See `Call`."""
        data = []
        for index, vector in enumerate(self.vectors_of(outcomes)):
            place = {"object": "embedding", "index": index, "embedding": self._shown(vector)}
            note = self.notes[index] if self.notes else None
            if note is not None and note.cut:
                place["details"] = {"tokens": note.tokens, "cut": note.cut}
            data.append(place)
        model = str(self.model.id)
        return JSON_HEADERS, dumped(
            {"object": "list", "data": data, "model": model, "usage": self.usage()}
        )

    def vectors_of(self, outcomes: Sequence[Outcome]) -> list[Array]:
        """The vectors of all items, of the size that was asked for."""
        return [shortened(vector, self.size) for vector in self.arrays_of(outcomes)]

    def _shown(self, vector: Array) -> object:
        if not self._in_base64:
            return vector
        return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")


class InfinityEmbeddingsCall(EmbeddingsCall):
    """See `Call`: infinity's call. It ignores other fields; a size of 0 means the whole vector."""

    __slots__ = ()

    def check_fields(self) -> None:
        """Reject what is no text."""
        given = self.document.get("modality", "text")
        if given != "text":
            raise InvalidInput(
                f"'modality' must be text, got {given!r:.50}", [{"param": "modality"}]
            )

    def read_size(self) -> None:
        """See `EmbeddingsCall`."""
        if self.document.get("dimensions") == 0:
            self.document["dimensions"] = None
        super().read_size()


class EmbedCall(EmbeddingsCall):
    """See `Call`: TEI's call, which answers nothing but the vectors."""

    __slots__ = ("_normalize",)

    def read(self, body: bytes, *, on_loop: bool) -> list[Item]:
        """See `Call`."""
        document = self.document
        self._in_base64 = False
        self._normalize = flag(document, "normalize", default=True)
        if document.get("prompt_name") is not None:
            raise InvalidInput(
                "'prompt_name' is not supported: a model has the prompt of its export"
            )
        self.read_size()
        values = inputs_of(document, "inputs", self.model)
        return self.items_of(values, lambda index: f"inputs[{index}]", on_loop=on_loop)

    def write(self, outcomes: Sequence[Outcome]) -> Written:
        """See `Call`."""
        vectors = self.vectors_of(outcomes)
        if self._normalize:
            vectors = [normalized(vector) for vector in vectors]
        return JSON_HEADERS, dumped(vectors)


def inputs_of(document: dict[str, object], name: str, model: LoadedModel) -> list[object]:
    """The inputs of a body: one text, several, the token ids of one, or those of several.

    Raises:
        InvalidInput: there are none, one is empty, or one has too many token ids for the model.
    """
    given = document.get(name)
    values = given if isinstance(given, list) and not is_tokens(given) else [given]
    if not values:
        raise InvalidInput(f"{name!r} must not be empty", [{"param": name}])
    most = model.manifest.inputs[0].axes[0].most
    for value in values:
        if not isinstance(value, str | list):
            raise InvalidInput(
                f"{name!r} must be a string, a list of strings, a list of token ids, or a list of "
                "lists of token ids",
                [{"param": name}],
            )
        if not value:
            raise InvalidInput(f"{name!r} must not have an empty text", [{"param": name}])
        if isinstance(value, list) and len(value) > most:  # before they become an array
            raise InvalidInput(
                f"{name!r} has {len(value)} token ids, the limit of the model is {most}",
                [{"param": name}],
            )
    return values


def is_tokens(given: object) -> bool:
    """Whether a value is the token ids of one text."""
    return isinstance(given, list) and bool(given) and type(given[0]) is int


def shortened(vector: Array, size: int | None) -> Array:
    """The first numbers of a vector, as a vector of length 1; None: the vector as it is."""
    if size is None or size == len(vector):
        return vector
    return normalized(vector[:size])


def normalized(vector: Array) -> Array:
    """A vector of length 1 in the same direction; of zeros: the same."""
    length = np.linalg.norm(vector)
    return vector / length if length > 0 else np.ascontiguousarray(vector)


ENDPOINTS = (
    Endpoint("/v1/embeddings", EmbeddingsCall, many=True),
    Endpoint("/embeddings", InfinityEmbeddingsCall, many=True),
    Endpoint("/embed", EmbedCall, many=True),
)
