"""Calls with one message and one answer."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from grpc.aio import AbortError

from app.api.oip.grpc.reading import Context, MessageReader, Rejected
from app.api.oip.grpc.statuses import REQUEST_ID, Metadata, refusal_of
from app.api.oip.grpc.unread import UnreadAnswers
from app.api.request_ids import RequestIds
from app.api.service import Service
from app.errors import Abandoned
from app.telemetry.tracing import RequestTrace

FIELDS = frozenset(("authorization", "x-api-key", "x-torchlane-timeout-ms", "x-request-id"))


@dataclass(frozen=True, slots=True)
class Parts:
    """What all calls share.

    Attributes:
        service: engine, models and limits.
        reader: reads messages.
        ids: request ids of the process.
        unread: answers that were not read.
    """

    service: Service
    reader: MessageReader
    ids: RequestIds
    unread: UnreadAnswers


class Unary:
    """Answers a call; a subclass knows which.

    Args:
        route: path of the call.
        parts: what all calls share.
        counted: whether the call is a prediction, for the metrics.
        followed: whether it may be traced.
    """

    def __init__(
        self, route: str, parts: Parts, *, counted: bool = False, followed: bool = True
    ) -> None:
        self._route = route
        self._counted = counted
        self._followed = followed
        self._tracing = parts.service.tracing
        self._metrics = parts.service.metrics
        self._parts = parts

    async def __call__(self, _: object, context: Context) -> bytes:
        """Answer one call."""
        began = time.perf_counter()
        if self._counted:
            self._metrics.requests_open += 1
        fields = fields_of(context)
        request_id = self._parts.ids.of(fields)
        shown_id = request_id.decode("ascii")
        trace = self._follow(request_id, began, context)
        status, outcome = 499, Abandoned.code
        try:
            content, metadata = await self.answer(context, fields, request_id, trace)
            context.set_trailing_metadata(((REQUEST_ID, shown_id), *metadata))
            status, outcome = 200, "ok"
            return content
        except Rejected as rejected:
            refusal = refusal_of(rejected.error, shown_id, trace)
            status, outcome = refusal.status, refusal.outcome
            raise AbortError from None
        except Exception as error:
            refusal = refusal_of(error, shown_id, trace)
            status, outcome = refusal.status, refusal.outcome
            await context.abort(refusal.code, refusal.details, refusal.metadata)
        finally:
            if self._counted:
                self._metrics.requests_open -= 1
                trace_id = trace.trace_id if trace is not None else ""
                ended = self._metrics.request(self._route, status, outcome)
                ended.count(time.perf_counter() - began, trace_id)
            if trace is not None:
                self._tracing.end(trace, status, outcome)

    async def answer(
        self,
        context: Context,
        fields: Mapping[bytes, bytes],
        request_id: bytes,
        trace: RequestTrace | None,
    ) -> tuple[bytes, Metadata]:
        """The answer's message, which is given to `UnreadAnswers`, and its metadata.

        Raises:
            Rejected: see `MessageReader.read`.
            TorchlaneError: the reason why there is none.
        """
        raise NotImplementedError

    def _follow(self, request_id: bytes, began: float, context: Context) -> RequestTrace | None:
        """The trace of a call, if it is traced."""
        tracing, route = self._tracing, self._route
        if not tracing.enabled or not self._followed:
            return None
        headers = [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in context.invocation_metadata() or ()
        ]
        fields = dict(headers)
        if not tracing.may_follow(headers, fields):
            return None
        return tracing.begin(RequestTrace("", route, route, request_id, began), headers, fields)


def fields_of(context: Context) -> dict[bytes, bytes]:
    """The metadata that is used here, as headers."""
    found = {}
    for name, value in context.invocation_metadata() or ():
        if name in FIELDS:
            found[name.encode()] = value if isinstance(value, bytes) else value.encode()
    return found
