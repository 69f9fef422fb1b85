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
from app.telemetry.tracing import CLIENT_GONE, RequestTrace

FIELDS = frozenset(
    (b"authorization", b"traceparent", b"x-api-key", b"x-torchlane-timeout-ms", b"x-request-id")
)


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
        self._access_log = parts.service.access_log
        self._metrics = parts.service.metrics
        self._parts = parts

    async def __call__(self, _: object, context: Context) -> bytes:
        fields = fields_of(context)
        record = self._begun(fields, context)
        shown_id = record.request_id.decode("ascii")
        status, outcome = CLIENT_GONE, Abandoned.code
        try:
            content, metadata = await self.answer(context, fields, record)
            record.bytes_out = len(content)
            context.set_trailing_metadata(((REQUEST_ID, shown_id), *metadata))
            status, outcome = 200, "ok"
            return content
        except Rejected as rejected:
            refusal = refusal_of(rejected.error, shown_id, record)
            status, outcome = refusal.status, refusal.outcome
            raise AbortError from None
        except Exception as error:
            refusal = refusal_of(error, shown_id, record)
            status, outcome = refusal.status, refusal.outcome
            await context.abort(refusal.code, refusal.details, refusal.metadata)
        finally:
            self._count(record, fields, status, outcome)

    async def answer(
        self,
        context: Context,
        fields: Mapping[bytes, bytes],
        record: RequestTrace,
    ) -> tuple[bytes, Metadata]:
        """The answer's message, which is given to `UnreadAnswers`, and its metadata.

        The record gets what is known of the call.

        Raises:
            Rejected: see `MessageReader.read`.
            TorchlaneError: the reason why there is none.
        """
        raise NotImplementedError

    def _begun(self, fields: Mapping[bytes, bytes], context: Context) -> RequestTrace:
        """Count a request that begins."""
        began = time.perf_counter()
        if self._counted:
            self._metrics.requests_open += 1
        record = RequestTrace("", self._route, self._route, self._parts.ids.of(fields), began)
        self._follow(record, context)
        return record

    def _count(
        self, record: RequestTrace, fields: Mapping[bytes, bytes], status: int, outcome: str
    ) -> None:
        """Count a request that has ended, and log it."""
        seconds = time.perf_counter() - record.began
        if self._counted:
            self._metrics.requests_open -= 1
            self._metrics.request(self._route, status, outcome).count(seconds, record.trace_id)
        is_logged = self._access_log.wants(status, seconds)
        if record.tokens or is_logged:
            self._tracing.end(record, status, outcome)
        if is_logged:
            self._access_log.write(record, fields)
        record.error = None  # its frames hold the record

    def _follow(self, record: RequestTrace, context: Context) -> None:
        """Let sinks follow a call."""
        tracing = self._tracing
        if not tracing.enabled or not self._followed:
            return
        headers = headers_of(context)
        fields = dict(headers)
        if tracing.may_follow(headers, fields):
            tracing.begin(record, headers, fields)


def fields_of(context: Context) -> dict[bytes, bytes]:
    """The metadata that is used here, as headers."""
    return {name: value for name, value in headers_of(context) if name in FIELDS}


def headers_of(context: Context) -> list[tuple[bytes, bytes]]:
    """All metadata, as headers."""
    return [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in context.invocation_metadata() or ()
    ]
