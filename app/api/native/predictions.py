"""A native prediction call: /predict, /batch-predict, and both below /models/NAME."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from app.api.answers import Pieces, in_parts
from app.api.calls import Call
from app.api.endpoints import PARTIAL, PICTURES, TOP_K, Endpoint
from app.api.memo import Written
from app.api.native.replies import binary_parts, json_document
from app.api.negotiation import WANTS_JSON, check_accepted, preferred
from app.api.payloads import MAX_DIGITS, MAX_SHOWN, read_items
from app.api.queries import parameters_of
from app.codecs.base import JSON, NPY, OCTET_STREAM, PNG
from app.errors import InvalidInput, NotAcceptable
from app.types import Arrays, Item, Outcome

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
        """See `Call`."""
        self._content_type = fields.get(b"content-type", b"").decode("latin-1")
        endpoint = self.endpoint
        self._top_k, self._pictures, self._partial = endpoint.top_k, False, False
        if endpoint.query:
            self._top_k = read_top_k(endpoint.query)
            self._pictures = read_flag(endpoint.query, PICTURES)
            self._partial = endpoint.many and read_flag(endpoint.query, PARTIAL)
        self._written_as = JSON

    def check_model(self) -> None:
        """See `Call`."""
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
        """See `Call`."""
        if self._content_type in NOT_PARSED:
            return None
        if len(body) > MAX_TEXT_BYTES and self.model.manifest.codec.kind == "text":
            return None
        chosen = f"{self._top_k}|{self._pictures}|{self._partial}|{self._written_as}"
        return f"{self.endpoint.many}|{chosen}|{self._content_type}"

    def read(self, body: bytes) -> list[Item]:
        """See `Call`."""
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
        """See `Call`."""
        if self._written_as == JSON:
            return super().write(outcomes)
        parts = binary_parts(self.model, self._written_as, outcomes, many=self.endpoint.many)
        return ((b"content-type", self._written_as.encode()),), b"".join(parts)

    def write_large(self, outcomes: Sequence[Outcome]) -> Pieces:
        """See `Call`."""
        return super().write_large(outcomes) if self._written_as == JSON else self._parts(outcomes)

    def _parts(self, outcomes: Sequence[Outcome]) -> Pieces:
        for part in binary_parts(self.model, self._written_as, outcomes, many=self.endpoint.many):
            yield from in_parts(part)
        return ((b"content-type", self._written_as.encode()),)

    def document_of(
        self, outcomes: Sequence[Outcome], collect: Callable[[Iterator[object]], object] = list
    ) -> object:
        """See `Answering`."""
        return json_document(
            *(self.model, outcomes),
            many=self.endpoint.many,
            top_k=self._top_k,
            notes=self.notes,
            pictures=self._pictures,
            partial=self._partial,
            collect=collect,
        )

    def expected_bytes(self, array_bytes: int) -> int:
        """See `Call`."""
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


ENDPOINTS = tuple(
    Endpoint(
        f"{below}/{call}",
        NativeCall,
        many=many,
        parameters=(TOP_K, PICTURES, PARTIAL) if many else (TOP_K, PICTURES),
    )
    for below in ("", "/models/{name}", "/models/{name}/versions/{version}")
    for call, many in (("predict", False), ("batch-predict", True))
)
