"""The prediction calls as an ASGI application: reads the body, waits, writes the answer.

FastAPI documents these routes, and `routes.py` passes their requests to it. In this project's own
server most requests use `exchange.py` instead, which costs half as much.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from starlette.types import Receive, Scope, Send

from app.api.answers import WRITE_BYTES, LargeAnswer
from app.api.calls import BODY_CUT, BODY_LATE, Call
from app.api.endpoints import Endpoint
from app.api.errors import CALL, CUT, REQUEST_ID, TRACE, TRANSPORT, RawAnswer, error_answer
from app.api.memory import BodyMemory
from app.api.negotiation import fields_of
from app.api.payloads import check_length
from app.api.queries import check_query, parameters_of
from app.api.service import Service
from app.api.streams import Stream
from app.engine.submission import Submission
from app.errors import Abandoned, DeadlineExceeded, ShuttingDown, TorchlaneError

# A disconnect is detected only while the call waits, and only after this time: watching costs about
# ten microseconds, and shorter work is not worth cancelling.
WATCH_AFTER_S = 0.01
STREAM_LEFT = "the client disconnected before the end of the stream"
STREAM_STOPPED = "the server stopped before the end of the stream"


class PredictionApp:
    """An ASGI application that answers one prediction request.

    Args:
        service: engine, models and limits.
        endpoint: the route's endpoint; each request has its own path parameters and query.
    """

    def __init__(self, service: Service, endpoint: Endpoint) -> None:
        self._service = service
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI; `scope["path_params"]` may name a model and a version."""
        metrics = self._service.metrics
        metrics.requests_open += 1
        try:
            try:
                call = self._call(scope)
                try:
                    answer = await self._answer(call, scope, receive)
                    if call.stream is None:
                        await _write(scope, send, answer)
                    else:
                        await _write_stream(scope, receive, send, answer, call.stream)
                finally:
                    call.sent()
            except TorchlaneError as error:
                if TRACE in scope:
                    scope[TRACE].error = error
                status, headers, content = error_answer(scope, error)
                if (known := scope.get(CALL)) is not None:
                    headers += known.version_header()
                await _write(scope, send, (status, headers, content))
        finally:
            metrics.requests_open -= 1

    def _call(self, scope: Scope) -> Call:
        service, wanted = self._service, scope.get("path_params") or {}
        name, version = wanted.get("name"), wanted.get("version")
        known = self._endpoint
        query: bytes = scope["query_string"]
        endpoint = Endpoint(known.route, known.call, name, version, known.many, query=query)
        call: Call = known.call(service, endpoint, fields_of(scope["headers"]))
        scope[CALL] = call
        if query and not call.takes_any_query:
            check_query((each for each, _ in parameters_of(query)), *known.parameters)
        call.trace = scope.get(TRACE)
        call.is_sent_always = call.may_stream = True
        return call

    async def _answer(self, call: Call, scope: Scope, receive: Receive) -> RawAnswer:
        service = self._service
        try:
            async with asyncio.timeout(call.deadline - service.engine.now()):
                body = await read_body(receive, service.limits.max_body_bytes, service.bodies)
        except TimeoutError as error:
            raise DeadlineExceeded(BODY_LATE) from error
        submission = call.begin(body, scope[REQUEST_ID].encode("ascii"))
        del body  # it may be a thousand times as large as the items
        await _until_settled(receive, submission)
        answer = call.answer()
        return await answer.encoded() if isinstance(answer, LargeAnswer) else answer


async def _write(scope: Scope, send: Send, answer: RawAnswer) -> None:
    """Write an answer; a long one in pieces, each of which waits until the client reads."""
    status, headers, content = answer
    transport = scope.get(TRANSPORT)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    at = 0
    while len(content) - at > WRITE_BYTES and not (transport and transport.is_closing()):
        piece = content[at : at + WRITE_BYTES]
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0)  # a fast client would otherwise block the event loop
        at += WRITE_BYTES
    await send({"type": "http.response.body", "body": content[at:]})


async def _write_stream(
    scope: Scope, receive: Receive, send: Send, answer: RawAnswer, stream: Stream
) -> None:
    """Write an answer as it comes, and no further than the client reads; end it when it leaves."""
    status, headers, _ = answer
    sent = 0
    watcher = asyncio.create_task(_leave_on_disconnect(receive, stream))

    async def write(piece: bytes) -> None:
        nonlocal sent
        for at in range(0, len(piece), WRITE_BYTES):
            part = piece[at : at + WRITE_BYTES]
            sent += len(part)
            await send({"type": "http.response.body", "body": part, "more_body": True})
            if len(piece) > WRITE_BYTES:
                await asyncio.sleep(0)  # a fast client would otherwise block the event loop

    def cut(error: TorchlaneError) -> None:
        """Record why the body has no end; only the end of the connection signals it."""
        if TRACE in scope:
            scope[TRACE].error = error
        scope.setdefault(CUT, []).append((status, error.code, sent))

    try:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        async with aclosing(stream.pieces()) as pieces:
            async for piece in pieces:
                await write(piece)
        if stream.is_left:
            cut(Abandoned(STREAM_LEFT))
        else:
            await send({"type": "http.response.body", "body": b""})
    except TorchlaneError as error:
        _, _, content = error_answer(scope, error)
        await write(stream.failure(content))
        cut(error)
    except asyncio.CancelledError:
        cut(ShuttingDown(STREAM_STOPPED))
        raise
    finally:
        watcher.cancel()


async def _leave_on_disconnect(receive: Receive, stream: Stream) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    stream.leave()


async def read_body(receive: Receive, limit: int, memory: BodyMemory) -> bytes:
    """The whole body; rejected as soon as it, or the total of all bodies, is too large."""
    chunks: list[bytes] = []
    size = held = 0
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Abandoned(BODY_CUT)
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            check_length(size, limit)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)
            held = memory.hold(size, held)
    finally:
        memory.give_back(held)


async def _until_settled(receive: Receive, submission: Submission) -> None:
    """Wait for the submission; abandon it if the client disconnects."""
    if submission.is_settled:
        return
    watchers: list[asyncio.Task[None]] = []

    def watch() -> None:
        watchers.append(asyncio.create_task(_abandon_on_disconnect(receive, submission)))

    timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, watch)
    try:
        await submission.settled()
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


async def _abandon_on_disconnect(receive: Receive, submission: Submission) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    submission.abandon()
