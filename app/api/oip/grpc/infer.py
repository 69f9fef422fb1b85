"""The call ModelInfer: a prediction for each item of the inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.api.answers import LargeAnswer
from app.api.calls import admitted
from app.api.endpoints import Endpoint
from app.api.handlers.call import model_or_handler
from app.api.oip.grpc.call import ROUTE, GrpcHandlerCall, GrpcInferCall
from app.api.oip.grpc.messages import InferMessage
from app.api.oip.grpc.reading import Context
from app.api.oip.grpc.statuses import Metadata
from app.api.oip.grpc.unary import Parts, Unary
from app.errors import InvalidInput
from app.telemetry.tracing import RequestTrace

CALL: Any = model_or_handler(GrpcInferCall, GrpcHandlerCall, declared=True)


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
        if not message.name:
            raise InvalidInput("model_name is missing")
        record.name, record.version = message.name, message.version
        endpoint = Endpoint(ROUTE, CALL, message.name, message.version or None, many=True)
        call: GrpcInferCall | GrpcHandlerCall = CALL(service, endpoint, fields, caller)
        call.message = message
        call.trace = record if record.tokens else None
        left_s = context.time_remaining()
        if left_s is not None:
            call.deadline = min(call.deadline, service.engine.now() + left_s)
        try:
            submission = call.begin(body, record.request_id)
            del body, message
            await submission.settled()
            answer = call.answer()
            if isinstance(answer, LargeAnswer):
                answer = await answer.encoded()
            _, headers, content = answer
            self._parts.unread.give(context, len(content), call.sent)
        except BaseException:
            call.sent()
            raise
        finally:
            call.describe(record)
        return content, tuple(
            (name.decode(), value.decode()) for name, value in headers if name != b"content-length"
        )
