"""The call ModelStreamInfer: requests one after the other, each with one answer or several."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial

from grpc.aio import BaseError

from app.access.entries import PREDICT
from app.api.answers import LARGE_BYTES
from app.api.calls import admitted
from app.api.handlers.call import model_or_handler
from app.api.oip.grpc.call import STREAM_ROUTE, GrpcInferCall, GrpcStreamCall
from app.api.oip.grpc.infer import answer_of, opened, take_headers
from app.api.oip.grpc.messages import InferMessage
from app.api.oip.grpc.protos import inference_pb2 as pb
from app.api.oip.grpc.reading import Context, Rejected
from app.api.oip.grpc.statuses import refusal_of
from app.api.oip.grpc.unary import Parts, Unary, fields_of
from app.api.oip.grpc.wire import written
from app.api.streams import Stream
from app.errors import Abandoned, TorchlaneError
from app.telemetry.tracing import CLIENT_GONE, RequestTrace
from app.threads import in_thread

CALL = model_or_handler(GrpcInferCall, GrpcStreamCall, with_tensors=True)
IS_LAST = "triton_final_response"  # Triton's parameter of answers
RESPONSE = 2  # field of a ModelStreamInferResponse


def _marked(*, is_last: bool) -> bytes:
    """The field of an answer that says whether it is the last one; fields may be appended."""
    marked = pb.ModelInferResponse()
    marked.parameters[IS_LAST].bool_param = is_last
    return marked.SerializeToString()


LAST = {is_last: _marked(is_last=is_last) for is_last in (False, True)}


class StreamInfer(Unary):
    """Answers ModelStreamInfer; see `Unary`. Each request is counted and logged by itself."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(STREAM_ROUTE, parts, counted=True)

    async def serve(self, _: object, context: Context) -> None:
        """Answer the requests of one stream, until its client ends it or the server stops."""
        fields = fields_of(context)
        service, reader = self._parts.service, self._parts.reader
        try:
            service.guard.admit(fields, PREDICT)
        except TorchlaneError as error:
            record = self._begun(fields, context)
            refusal = refusal_of(error, record.request_id.decode("ascii"), record)
            self._count(record, fields, refusal.status, refusal.outcome)
            await context.abort(refusal.code, refusal.details, refusal.metadata)
        while not service.lifecycle.stopping:
            try:
                body = await reader.read(context, "")
            except Rejected:
                await context.read()  # raises the error with which grpcio ends the call
                return
            except Abandoned:  # the client sends no more
                return
            try:
                await self._serve(context, fields, body)
            except Abandoned as error:  # its status waits until the client reads what is before it
                reader.abort(context, error, "")
                await asyncio.sleep(0)  # another task begins to send it
                await context.read()  # as above
                return

    async def _serve(self, context: Context, fields: Mapping[bytes, bytes], body: bytes) -> None:
        """Answer one request.

        Raises:
            Abandoned: if the client does not read the answers.
        """
        record = self._begun(fields, context)
        record.bytes_in = len(body)
        status, outcome, echo = CLIENT_GONE, Abandoned.code, pb.ModelInferResponse()
        try:
            await self._answer(context, fields, record, body, echo)
            status, outcome = 200, "ok"
        except BaseError:
            raise
        except Exception as error:
            refusal = refusal_of(error, record.request_id.decode("ascii"), record)
            status, outcome = refusal.status, refusal.outcome
            if isinstance(error, Abandoned):
                raise
            message = pb.ModelStreamInferResponse(error_message=refusal.details)
            message.infer_response.CopyFrom(echo)
            await self._parts.unread.write(context, message.SerializeToString())
        finally:
            self._count(record, fields, status, outcome)

    async def _answer(
        self,
        context: Context,
        fields: Mapping[bytes, bytes],
        record: RequestTrace,
        body: bytes,
        echo: pb.ModelInferResponse,
    ) -> None:
        """Write the answers to a request; `echo` gets its id.

        Raises:
            TorchlaneError: the reason why there is none, or not one more.
        """
        service = self._parts.service
        caller = admitted(service, fields)
        message = InferMessage(body, service.limits.max_items)
        echo.id = message.id
        call = opened(CALL, service, message, fields, caller, record)
        take_headers(call, context)
        try:
            submission = call.begin(body, record.request_id)
            del body, message
            await submission.settled()
            _, _, content = await answer_of(call)
            if isinstance(call, GrpcStreamCall) and call.stream is not None:
                await self._write_items(context, record, call, call.stream)
            else:
                await self._write(context, record, content, is_last=True)
        finally:
            call.sent()
            call.describe(record)

    async def _write_items(
        self, context: Context, record: RequestTrace, call: GrpcStreamCall, stream: Stream
    ) -> None:
        async with aclosing(stream.pieces()) as items:
            async for item in items:
                if len(item) > LARGE_BYTES:
                    content = await in_thread(partial(call.message_of, item))
                else:
                    content = call.message_of(item)
                await self._write(context, record, content, is_last=False)
        if call.wants_end:
            await self._write(context, record, call.end(), is_last=True)

    async def _write(
        self, context: Context, record: RequestTrace, content: bytes, *, is_last: bool
    ) -> None:
        """Write a ModelInferResponse, and whether it is the last one to its request."""
        answer = written(RESPONSE, content + LAST[is_last])
        record.bytes_out += len(answer)
        await self._parts.unread.write(context, answer)
