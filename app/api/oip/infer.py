"""An infer call of the protocol over HTTP: POST /v2/models/NAME[/versions/VERSION]/infer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from weakref import ref

from app.access.guard import Caller
from app.api.answers import Pieces
from app.api.calls import Call
from app.api.endpoints import Endpoint
from app.api.memo import Written
from app.api.negotiation import ANYTHING, check_accepted
from app.api.oip import fast_json
from app.api.oip.answers import (
    check_outputs,
    outputs_in_steps,
    write_answer,
    write_large_answer,
)
from app.api.oip.requests import (
    HEADER_LENGTH,
    RAW,
    InferRequest,
    header_length,
    load,
    read_request,
)
from app.api.oip.tensors import Layout, items_at, items_of, layout_of
from app.api.payloads import check_marks
from app.api.service import Service
from app.codecs.base import JSON, OCTET_STREAM, Budget, Codec, Marks
from app.codecs.places import at_once
from app.errors import InvalidInput
from app.types import Arrays, Item, Outcome

HEADER = HEADER_LENGTH.lower().encode()
MAX_KNOWN, MAX_KNOWN_BYTES = 256, 4096
ENVELOPE_MARKS = 2000  # names, shapes and parameters around the items


def parse_body(
    codec: Marks,
    body: bytes,
    json_bytes: int | None,
    max_items: int,
    budget: Budget,
) -> InferRequest:
    """The request in a body of JSON and, after it, the bytes of tensors.

    Args:
        codec: of the model, or of the handler.
        body: the whole body.
        json_bytes: the length of its JSON; None for the whole body.
        max_items: maximum number of items.
        budget: the request's budget.

    Raises:
        InvalidInput, PayloadTooLarge, TooLongForLoop: see `app.api.payloads.read_items`.
    """
    size = len(body) if json_bytes is None else json_bytes
    if size > len(body):
        raise InvalidInput(
            f"{HEADER_LENGTH} is {size}, but the body has only {len(body)} bytes (uncompressed)"
        )
    head = body if size == len(body) else body[:size]
    check_marks(head, codec, max_items, budget, ENVELOPE_MARKS)
    document: Any = None
    if size == len(body):
        document = fast_json.load(body)
    if document is None:
        budget.read(size)
        document = load(head, nan=codec.takes_nan)
    return read_request(document, memoryview(body)[size:])


def of_item(error: InvalidInput) -> InvalidInput:
    """The error of an item by the item's index, because `inputs` are tensors in a request."""
    first = error.details[0] if error.details else {}
    if "index" not in first:
        return error
    return InvalidInput(f"item {first['index']}: {first['problem']}")


def check_answer(accept: bytes, request: InferRequest) -> None:
    """Check that a caller accepts the media type that its request asks for.

    Raises:
        NotAcceptable: with the media type.
    """
    wanted = request.outputs
    is_binary = request.binary if wanted is None else any(each.binary for each in wanted)
    check_accepted(accept, OCTET_STREAM if is_binary else JSON)


class KnownHeads:
    """Layouts by the JSON before binary tensors, which clients repeat unless they send an id.

    It keeps no model alive.
    """

    def __init__(self) -> None:
        self._layouts: dict[tuple[ref[Codec], bytes], Layout] = {}

    def get(self, codec: Codec, head: bytes) -> Layout | None:
        """The layout of the tensors after a head; None if it is not known."""
        return self._layouts.get((ref(codec), head))

    def put(self, codec: Codec, head: bytes, layout: Layout) -> None:
        """Remember the layout; at the limit all others are forgotten."""
        if len(self._layouts) >= MAX_KNOWN:
            self._layouts.clear()
        self._layouts[ref(codec), head] = layout


def json_bytes_of(fields: Mapping[bytes, bytes]) -> int | None:
    """The length of the JSON at the start of the body; None if it is the whole body.

    Raises:
        InvalidInput: if the header is not a whole number.
    """
    value = fields.get(HEADER)
    return None if value is None else header_length(value)


class OipCall(Call):
    """See `Call`. An infer call, by any transport.

    Attributes:
        request: the request in the body, without its inputs, once its items have been read.
    """

    __slots__ = ("request",)

    def items_of(self, request: InferRequest, budget: Budget) -> list[Item]:
        """The items of a request, for which the answer will be written.

        Raises:
            TorchlaneError: if the model does not accept it.
        """
        check_outputs(self.model.manifest.outputs, request)
        self.takes(request._replace(inputs=()))  # inputs may keep the whole body alive
        most = self.service.limits.max_items
        try:
            return items_of(self.model.codec, request.inputs, most, budget)
        except InvalidInput as error:
            raise of_item(error) from error

    def check_model(self) -> None:
        """Check nothing: the body says whether the answer is JSON; see `takes`."""

    def takes(self, request: InferRequest) -> None:
        """Answer this request, without its inputs, within its timeout.

        Raises:
            NotAcceptable: if the caller does not accept the answer's media type.
        """
        self.request = request
        check_answer(self.accept, request)
        self.deadline = min(self.deadline, self.arrived_at + request.timeout_s)

    def chosen(self, outputs: Arrays) -> Arrays:
        """See `Answering`: the requested outputs, and those that count rows."""
        wanted = self.request.outputs
        if wanted is None:
            return outputs
        needed = {each.name for each in wanted}
        needed.update(spec.count for spec in self.model.manifest.outputs if spec.count)
        return {name: array for name, array in outputs.items() if name in needed}

    def expected_bytes(self, array_bytes: int) -> int:
        wanted = self.request.outputs
        if wanted is None:
            return array_bytes if self.request.binary else super().expected_bytes(array_bytes)
        if all(each.classes for each in wanted):
            return 0
        return array_bytes  # perhaps not all outputs


class InferCall(OipCall):
    """See `Call`. The Content-Type is ignored, because clients send none or a wrong one.

    Args:
        heads: the known heads of all calls, for the event loop.
        service, endpoint, fields, caller: see `Call`.
    """

    __slots__ = ("_heads", "_json_bytes")

    def __init__(
        self,
        heads: KnownHeads,
        service: Service,
        endpoint: Endpoint,
        fields: Mapping[bytes, bytes],
        caller: Caller | None = None,
    ) -> None:
        self._heads = heads
        super().__init__(service, endpoint, fields, caller)

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        self._json_bytes = json_bytes_of(fields)
        self.request = RAW

    def memo_text(self, body: bytes) -> str | None:
        """See `Call`. Files sent as bytes are worth remembering too."""
        size = self._json_bytes
        if size is None or size == len(body) or self.model.codec.files is not None:
            accept = b"" if self.accept in ANYTHING else self.accept  # it may reject the answer
            return f"oip|{size}|{accept!r}"
        return None

    def read(self, body: bytes) -> list[Item]:
        budget, on_loop = self.budget(), self.on_loop
        codec, most = self.model.codec, self.service.limits.max_items
        if self._json_bytes == 0:
            if OCTET_STREAM not in codec.media_types:
                raise InvalidInput(
                    f"{HEADER_LENGTH} is 0, so the body must be the bytes of the only input, of "
                    f"fixed shape, but model {self.model.id.name!r} has no such input"
                )
            check_answer(self.accept, self.request)
            return codec.decode_raw(OCTET_STREAM, body, max_items=most, budget=budget)
        size = self._json_bytes
        if size is None or size > MAX_KNOWN_BYTES or not on_loop:
            return self.items_of(parse_body(codec, body, size, most, budget), budget)
        head = body[:size]
        known = self._heads.get(codec, head)
        if known is not None and known.nbytes == len(body) - size:
            self.takes(known.request)
            try:
                return items_at(codec, known, body, size)
            except InvalidInput as error:
                raise of_item(error) from error
        request = parse_body(codec, body, size, most, budget)
        items = self.items_of(request, budget)
        layout = layout_of(codec, request)
        if layout is not None:
            self._heads.put(codec, head, layout)
        return items

    def write(self, outcomes: Sequence[Outcome]) -> Written:
        outputs = at_once(outputs_in_steps(self.model, self.request, outcomes))
        return write_answer(self.model.id, self.request, outputs)

    def write_large(self, outcomes: Sequence[Outcome]) -> Pieces:
        outputs = yield from outputs_in_steps(self.model, self.request, outcomes)
        return (yield from write_large_answer(self.model.id, self.request, outputs))
