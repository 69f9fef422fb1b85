"""The call ModelInfer: a prediction for each item of the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from app.access.guard import Caller
from app.api.answers import LargeAnswer
from app.api.calls import admitted
from app.api.endpoints import Endpoint
from app.api.errors import RawAnswer
from app.api.handlers.call import model_or_handler
from app.api.oip.grpc.call import ROUTE, GrpcHandlerCall, GrpcInferCall
from app.api.oip.grpc.messages import InferMessage
from app.api.oip.grpc.reading import Context
from app.api.oip.grpc.statuses import Metadata
from app.api.oip.grpc.unary import Parts, Unary, headers_of
from app.api.service import Service
from app.errors import InvalidInput
from app.telemetry.tracing import RequestTrace

GrpcCall: TypeAlias = GrpcInferCall | GrpcHandlerCall
CALL = model_or_handler(GrpcInferCall, GrpcHandlerCall, with_tensors=True)


class Infer(Unary):
    """Answers ModelInfer; see `Unary`."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(ROUTE, parts, counted=True)

    async def answer(
        self,
        context: Context,
        fields: Mapping[bytes, bytes],
        record: RequestTrace,
    ) -> tuple[bytes, Metadata]:
        service = self._parts.service
        caller = admitted(service, fields)  # before the message: it counts whatever follows
        body = await self._parts.reader.read(context, record.request_id.decode("ascii"))
        record.bytes_in = len(body)
        message = InferMessage(body, service.limits.max_items)
        call = opened(CALL, service, message, fields, caller, record)
        take_headers(call, context)
        left_s = context.time_remaining()
        if left_s is not None:
            call.deadline = min(call.deadline, service.engine.now() + left_s)
        try:
            submission = call.begin(body, record.request_id)
            del body, message
            await submission.settled()
            _, headers, content = await answer_of(call)
            self._parts.unread.give(context, len(content), call.sent)
        except BaseException:
            call.sent()
            raise
        finally:
            call.describe(record)
        return content, tuple(
            (name.decode(), value.decode()) for name, value in headers if name != b"content-length"
        )


def opened(
    make: Callable[..., Any],
    service: Service,
    message: InferMessage,
    fields: Mapping[bytes, bytes],
    caller: Caller | None,
    record: RequestTrace,
) -> GrpcCall:
    """The call that a message asks for.

    Args:
        make: makes it.
        service: engine, models and limits.
        message: of the caller.
        fields: the metadata.
        caller: the caller, already admitted.
        record: gets the names in the message.

    Raises:
        TorchlaneError: if the message names no model that can be called.
    """
    if not message.name:
        raise InvalidInput("model_name is missing")
    record.name, record.version = message.name, message.version
    endpoint = Endpoint(record.route, make, message.name, message.version or None, many=True)
    call: GrpcCall = make(service, endpoint, fields, caller)
    call.message = message
    call.trace = record if record.tokens else None
    return call


def take_headers(call: GrpcCall, context: Context) -> None:
    """Give a call all metadata as headers, one of which may identify the caller to weights."""
    if call.service.loaded.has_weights:
        call.headers = dict(headers_of(context))


async def answer_of(call: GrpcCall) -> RawAnswer:
    """The answer of a call that is settled.

    Raises:
        TorchlaneError: the reason why there is none.
    """
    answer = call.answer()
    return await answer.encoded() if isinstance(answer, LargeAnswer) else answer
