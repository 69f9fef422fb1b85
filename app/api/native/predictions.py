"""A native prediction call: /predict, /batch-predict, and both below /models/NAME."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

from app.api.answers import Pieces, in_parts
from app.api.calls import Call
from app.api.endpoints import PARTIAL, PICTURES, TOP_K, Endpoint
from app.api.handlers.call import model_or_handler
from app.api.memo import Written
from app.api.negotiation import WANTS_JSON, check_accepted, preferred
from app.api.outcomes import JSON_HEADERS, all_failed, dumped, failure_of
from app.api.payloads import MAX_DIGITS, MAX_SHOWN, read_items
from app.api.queries import parameters_of
from app.codecs.base import JSON, NPY, OCTET_STREAM, PNG
from app.errors import InvalidInput, ItemFailed, NotAcceptable
from app.types import Arrays, Item, Note, Outcome

# The values of parameters, and whether each is a yes.
FLAGS = {PICTURES: {"base64": True}, PARTIAL: {"true": True, "false": False}}
# For text models: digesting more would block the event loop for more than a millisecond.
MAX_TEXT_BYTES = 1 << 20
NOT_PARSED = frozenset(
    {OCTET_STREAM, NPY}
)  # such a body is the array itself: the memo saves nothing


class NativeCall(Call):
    """See `Call`."""

    __slots__ = ("_content_type", "_partial", "_pictures", "_top_k", "_written_as")

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        self._content_type = fields.get(b"content-type", b"").decode("latin-1")
        endpoint = self.endpoint
        self._top_k, self._pictures, self._partial = endpoint.top_k, False, False
        if endpoint.query:
            self._top_k = read_top_k(endpoint.query)
            self._pictures = read_flag(endpoint.query, PICTURES)
            self._partial = endpoint.many and read_flag(endpoint.query, PARTIAL)
        self._written_as = JSON

    def check_model(self) -> None:
        if self._top_k is not None or self._pictures or self._partial:
            self._check_query()
        elif self.accept not in WANTS_JSON:
            codec = self.model.codec
            offers = codec.batch_types if self.endpoint.many else codec.item_types
            self._written_as = preferred(self.accept, offers)
            self.draws = self._written_as == PNG

    def _check_query(self) -> None:
        """Check the query's parameters against the model; all are for JSON.

        Raises:
            InvalidInput: if the model has nothing that they could select.
            NotAcceptable: if the caller does not accept JSON.
        """
        name, why = PARTIAL, "has errors of single items"
        if self._top_k is not None:
            name, why = TOP_K, "has labels or indices"
            self.model.codec.check_top_k()
        if self._pictures:
            name, why = PICTURES, "has pictures in base64"
            self.model.codec.check_pictures()
            self.draws = True
        try:
            check_accepted(self.accept, JSON)
        except NotAcceptable as error:
            raise NotAcceptable(
                f"{error}: with {name} it {why}; omit {name}, or accept {JSON}"
            ) from error

    def memo_text(self, body: bytes) -> str | None:
        if self._content_type in NOT_PARSED:
            return None
        if len(body) > MAX_TEXT_BYTES and self.model.manifest.codec.kind == "text":
            return None
        chosen = f"{self._top_k}|{self._pictures}|{self._partial}|{self._written_as}"
        return f"{self.endpoint.many}|{chosen}|{self._content_type}"

    def read(self, body: bytes) -> list[Item]:
        if self._partial:
            self.invalid = {}  # again in a thread
        return read_items(
            self.model.codec,
            self._content_type,
            body,
            many=self.endpoint.many,
            max_items=self.service.limits.max_items,
            again=not self.on_loop,
            budget=self.budget,
            invalid=self.invalid,
        )

    def chosen(self, outputs: Arrays) -> Arrays:
        """See `Answering`. A binary answer has all counted rows, in the model's order."""
        if self._written_as == JSON:
            return self.model.codec.chosen(outputs, self._top_k)
        if self._written_as == PNG:  # of one output
            drawn = next(spec for spec in self.model.manifest.outputs if spec.picture is not None)
            return {name: outputs[name] for name in (drawn.name, drawn.count) if name is not None}
        return outputs

    def write(self, outcomes: Sequence[Outcome]) -> Written:
        if self._written_as == JSON:
            return JSON_HEADERS, dumped(self.document_of(outcomes))
        headers = ((b"content-type", self._written_as.encode()),)
        return headers, b"".join(self._binary_parts(outcomes))

    def write_large(self, outcomes: Sequence[Outcome]) -> Pieces:
        if self._written_as == JSON:
            return super().write_large(outcomes)
        return self._binary_pieces(outcomes)

    def _binary_pieces(self, outcomes: Sequence[Outcome]) -> Pieces:
        for part in self._binary_parts(outcomes):
            yield from in_parts(part)
        return ((b"content-type", self._written_as.encode()),)

    def _binary_parts(self, outcomes: Sequence[Outcome]) -> Iterator[memoryview]:
        """The predictions as one array; no part of it can show which items failed."""
        if any(isinstance(outcome, ItemFailed) for outcome in outcomes):
            raise failure_of(outcomes)
        arrays = [cast(Arrays, outcome) for outcome in outcomes]
        return self.model.codec.encode_raw(self._written_as, arrays, many=self.endpoint.many)

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        """See `Answering`; a failed item keeps its place."""
        if not self._partial and all_failed(outcomes):
            raise failure_of(outcomes)
        model = self.model.id
        content: dict[str, object] = {"model": model.name, "version": model.version}
        if self._partial:
            content["failed"] = sum(isinstance(each, ItemFailed) for each in outcomes)
        if self.endpoint.many:
            content["predictions"] = collect(self._places(outcomes))
        else:
            content["prediction"] = self._place(outcomes[0], self.notes[0] if self.notes else None)
        return content

    def _places(self, outcomes: Sequence[Outcome]) -> Iterator[object]:
        for index, outcome in enumerate(outcomes):
            yield self._place(outcome, self.notes[index] if self.notes else None)

    def _place(self, outcome: Outcome, note: Note | None) -> dict[str, object]:
        """What an item has in the answer: its prediction or its error."""
        if not isinstance(outcome, ItemFailed):
            if self._pictures:
                return self.model.codec.encode(outcome, self._top_k, note, pictures=True)
            return self.model.codec.encode(outcome, self._top_k, note)
        place: dict[str, object] = {"error": str(outcome), "code": outcome.code}
        if outcome.details:
            place["details"] = outcome.details
        return place

    def expected_bytes(self, array_bytes: int) -> int:
        if self._written_as != JSON:
            return array_bytes
        selects = self._top_k is not None or self.model.manifest.codec.top_k is not None
        return 0 if selects else super().expected_bytes(array_bytes)


def read_top_k(query: bytes) -> int | None:
    """The number of scores that a query requests; None for any.

    Raises:
        InvalidInput: if top_k is not a single whole number of at least 1.
    """
    given = [value for name, value in parameters_of(query) if name == TOP_K]
    if not given:
        return None
    if len(given) > 1:
        raise InvalidInput(f"the URL has top_k {len(given)} times; set it once")
    text = given[0]
    digits = text.lstrip("0")
    if not text.isascii() or not text.isdigit() or not digits:
        raise InvalidInput(f"top_k must be a whole number of at least 1, got {text[:MAX_DIGITS]!r}")
    return int(digits[:MAX_DIGITS])


def read_flag(query: bytes, name: str) -> bool:
    """Whether a query sets a parameter of `FLAGS`.

    Raises:
        InvalidInput: if it has it more than once, or with another value.
    """
    given = [value for each, value in parameters_of(query) if each == name]
    values = FLAGS[name]
    if not given or (len(given) == 1 and given[0] in values):
        return bool(given) and values[given[0]]
    got = " and ".join(given)[:MAX_SHOWN]
    raise InvalidInput(f"{name} must be {' or '.join(values)}, once, got {got!r}")


CALL = model_or_handler(NativeCall)
ENDPOINTS = tuple(
    Endpoint(
        f"{below}/{call}",
        CALL,
        many=many,
        parameters=(TOP_K, PICTURES, PARTIAL) if many else (TOP_K, PICTURES),
    )
    for below in ("", "/models/{name}", "/models/{name}/versions/{version}")
    for call, many in (("predict", False), ("batch-predict", True))
)
