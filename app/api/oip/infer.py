"""An infer call of the protocol over HTTP: POST /v2/models/NAME[/versions/VERSION]/infer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from app.api.calls import Call
from app.api.endpoints import Endpoint, Paths
from app.api.memo import Written
from app.api.oip.answers import check_outputs, outputs_of, write_answer
from app.api.oip.fast_json import FastJson
from app.api.oip.requests import (
    HEADER_LENGTH,
    RAW,
    InferRequest,
    header_length,
    load,
    read_request,
)
from app.api.oip.tensors import items_of
from app.api.payloads import check_marks
from app.codecs.base import OCTET_STREAM, PixelBudget
from app.errors import InvalidInput
from app.types import Item, Outcome

HEADER = HEADER_LENGTH.lower().encode()
FAST = FastJson()  # used on the event loop only
ENVELOPE_MARKS = 2000  # names, shapes and parameters around the items


class InferCall(Call):
    """See `Call`. The Content-Type is ignored: clients send none, or a wrong one.

    Attributes:
        request: what the body asks for, once its items have been read.
    """

    __slots__ = ("_json_bytes", "request")

    def read_head(self, fields: Mapping[bytes, bytes]) -> None:
        """See `Call`."""
        given = fields.get(HEADER)
        self._json_bytes = None if given is None else header_length(given)
        self.request = RAW

    def asked(self) -> str | None:
        """See `Call`."""
        return "oip" if self._json_bytes is None else None

    def read(self, body: bytes, *, on_loop: bool) -> list[Item]:
        """See `Call`."""
        budget = PixelBudget(on_loop=on_loop)
        if self._json_bytes == 0:
            most = self.service.limits.max_items
            return self.model.codec.decode_raw(OCTET_STREAM, body, max_items=most, budget=budget)
        size = len(body) if self._json_bytes is None else self._json_bytes
        if size > len(body):
            raise InvalidInput(
                f"{HEADER_LENGTH} is {size}, but the body has only {len(body)} bytes (uncompressed)"
            )
        document = FAST.load(body) if on_loop and size == len(body) else None
        if document is None:
            budget.read(size)
            head = body if size == len(body) else body[:size]
            limits = self.service.limits
            check_marks(head, self.model.codec, limits.max_items, ENVELOPE_MARKS)
            document = load(head)
        return self.items_of(read_request(document, memoryview(body)[size:]), budget)

    def items_of(self, request: InferRequest, budget: PixelBudget) -> list[Item]:
        """The items of a request, which the answer will be written for.

        Raises:
            TorchlaneError: if the model does not take it.
        """
        engine = self.service.engine
        self.deadline = min(self.deadline, engine.now() + request.timeout_s)
        check_outputs(self.model, request)
        self.request = request
        most = self.service.limits.max_items
        return items_of(self.model.codec, request.inputs, most, budget)

    def write(self, outcomes: Sequence[Outcome]) -> Written:
        """See `Call`."""
        outputs = outputs_of(self.model, self.request, outcomes)
        return write_answer(self.model, self.request, outputs)


def _endpoint(match: re.Match[bytes]) -> Endpoint:
    name, version = (each.decode("ascii") for each in match.groups(b""))
    route = ROUTE_OF_VERSION if version else ROUTE
    return Endpoint(route, InferCall, name, version or None, many=True)


ROUTE = "/v2/models/{name}/infer"
ROUTE_OF_VERSION = "/v2/models/{name}/versions/{version}/infer"
PATHS = Paths(
    re.compile(rb"/v2/models/([A-Za-z0-9_-]+)(?:/versions/([0-9]{1,9}))?/infer"), _endpoint
)
