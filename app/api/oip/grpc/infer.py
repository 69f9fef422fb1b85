"""The call ModelInfer: a prediction for each item of the inputs."""

from __future__ import annotations

import time
from collections.abc import Mapping

from grpc.aio import AbortError

from app.api.answers import LargeAnswer
from app.api.calls import admitted
from app.api.endpoints import Endpoint
from app.api.oip.grpc.call import ROUTE, GrpcInferCall
from app.api.oip.grpc.messages import InferMessage
from app.api.oip.grpc.reading import Context, MessageReader, Rejected
from app.api.oip.grpc.statuses import REQUEST_ID, Metadata, refusal_of
from app.api.oip.grpc.unread import UnreadAnswers
from app.api.request_ids import RequestIds
from app.api.service import Service
from app.errors import Abandoned, InvalidInput
from app.telemetry.tracing import RequestTrace, Tracing

FIELDS = frozenset(("authorization", "x-api-key", "x-torchlane-timeout-ms", "x-request-id"))


class Infer:
    """Answers ModelInfer.

    Args:
        service: engine, models and limits.
        reader: reads messages.
        ids: request ids of the process.
        unread: answers that were not read.
    """

    def __init__(
        self, service: Service, reader: MessageReader, ids: RequestIds, unread: UnreadAnswers
    ) -> None:
        self._service = service
        self._reader = reader
        self._ids = ids
        self._unread = unread

    async def __call__(self, _: object, context: Context) -> bytes:
        """Answer one call."""
        began = time.perf_counter()
        metrics = self._service.metrics
        metrics.requests_open += 1
        fields = fields_of(context)
        request_id = self._ids.of(fields)
        shown_id = request_id.decode("ascii")
        trace = followed(self._service.tracing, ROUTE, request_id, began, context)
        status, outcome = 499, Abandoned.code
        try:
            content, metadata = await self._answer(context, fields, request_id, trace)
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
            metrics.requests_open -= 1
            trace_id = trace.trace_id if trace is not None else ""
            metrics.request(ROUTE, status, outcome).ended(time.perf_counter() - began, trace_id)
            if trace is not None:
                self._service.tracing.end(trace, status, outcome)

    async def _answer(
        self,
        context: Context,
        fields: Mapping[bytes, bytes],
        request_id: bytes,
        trace: RequestTrace | None,
    ) -> tuple[bytes, Metadata]:
        service = self._service
        caller = admitted(service, fields)  # before the message: it counts whatever follows
        body = await self._reader.read(context, request_id.decode("ascii"))
        message = InferMessage(body, service.limits.max_items)
        if not message.name:
            raise InvalidInput("model_name is missing")
        endpoint = Endpoint(ROUTE, GrpcInferCall, message.name, message.version or None, many=True)
        call = GrpcInferCall(service, endpoint, fields, caller)
        call.message = message
        call.trace = trace
        left_s = context.time_remaining()
        if left_s is not None:
            call.deadline = min(call.deadline, service.engine.now() + left_s)
        submission = call.begin(body, request_id)
        del body, message
        await submission.settled()
        try:
            answer = call.answer()
            if isinstance(answer, LargeAnswer):
                answer = await answer.encoded()
            _, headers, content = answer
            self._unread.give(context, len(content), call.sent)
        except BaseException:
            call.sent()
            raise
        return content, tuple(
            (name.decode(), value.decode()) for name, value in headers if name != b"content-length"
        )


def followed(
    tracing: Tracing, route: str, request_id: bytes, began: float, context: Context
) -> RequestTrace | None:
    """The trace of a call, if it is traced."""
    if not tracing.enabled:
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
