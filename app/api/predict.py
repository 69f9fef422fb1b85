"""The prediction calls: parse, one await, shape. Plain ASGI, because here every microsecond counts.

FastAPI documents these routes, and `routes.py` hands their requests over; its own way from a route
to an endpoint (matching, dependencies, validation, serialisation) would cost more than the rest.
"""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from app.api.errors import ROUTE, error_answer
from app.api.payloads import (
    JSON,
    answer_media_type,
    binary_answer,
    check_answer,
    check_length,
    json_answer,
    read_items,
)
from app.api.service import Service
from app.engine.submission import Submission
from app.errors import (
    Abandoned,
    DeadlineExceeded,
    InvalidInput,
    ModelNotFound,
    TorchlaneError,
)
from app.types import Answer, CacheCounts

# A caller that leaves is noticed only while it waits, and only after this: watching costs about ten
# microseconds, and work that is over sooner is not worth calling off.
WATCH_AFTER_S = 0.01
MAX_DIGITS = 18  # of a number in a header or path: more is larger than any limit


@dataclass(slots=True)
class Head:
    """The request headers that matter here, as they came."""

    content_type: bytes = b""
    content_length: bytes = b""
    accept: bytes = b""
    timeout_ms: bytes = b""


class PredictionApp:
    """An ASGI application that answers one prediction request.

    Args:
        service: engine, models and limits.
        many: whether bodies hold many items.
    """

    def __init__(self, service: Service, *, many: bool) -> None:
        self._service = service
        self._many = many

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI; `scope["path_params"]` may name a model and a version."""
        scope.setdefault(ROUTE, scope["path"])
        metrics = self._service.metrics
        metrics.requests_open += 1
        try:
            try:
                status = 200
                headers, content = await self._answer(scope, receive)
            except TorchlaneError as error:
                status, headers, content = error_answer(scope, error)
            headers.append((b"content-length", b"%d" % len(content)))
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": content})
        finally:
            metrics.requests_open -= 1

    async def _answer(
        self, scope: Scope, receive: Receive
    ) -> tuple[list[tuple[bytes, bytes]], bytes]:
        """The headers and body of a good answer."""
        arrived = time.perf_counter()
        service, many = self._service, self._many
        head = _read_head(scope)
        deadline = service.engine.now() + _timeout_s(head.timeout_ms, service.limits.timeout_s)
        wanted = scope.get("path_params") or {}
        model = service.loaded.resolve(wanted.get("name"), _version(wanted.get("version")))
        try:
            async with asyncio.timeout(deadline - service.engine.now()):
                body = await _read_body(head, receive, service.limits.max_body_bytes)
        except TimeoutError as error:
            raise DeadlineExceeded("the body did not arrive in time; allow more") from error
        content_type = head.content_type.decode("latin-1")
        items = read_items(
            model.codec, content_type, body, many=many, max_items=service.limits.max_items
        )
        decoded = time.perf_counter()
        answer = await _while_connected(receive, service.engine.submit(model.id, items, deadline))
        answered = time.perf_counter()
        check_answer(answer.outcomes, service.limits.max_answer_bytes)
        media_type = answer_media_type(head.accept.decode("latin-1"))
        if media_type == JSON:
            content = json_answer(model, answer.outcomes, many=many)
        else:
            content = binary_answer(model, media_type, answer.outcomes, many=many)
        timing = _server_timing(decoded - arrived, answer, time.perf_counter() - answered)
        return [
            (b"content-type", media_type.encode()),
            (b"x-torchlane-cache", _cache_header(answer.cache, many=many).encode()),
            (b"server-timing", timing.encode()),
        ], content


def _read_head(scope: Scope) -> Head:
    """One pass over the headers; ASGI gives their names in lower case."""
    head = Head()
    for name, value in scope["headers"]:
        if name == b"content-type":
            head.content_type = value
        elif name == b"content-length":
            head.content_length = value
        elif name == b"accept":
            head.accept = value
        elif name == b"x-torchlane-timeout-ms":
            head.timeout_ms = value
    return head


async def _read_body(head: Head, receive: Receive, limit: int) -> bytes:
    """The whole body; refused as soon as it is known to be larger than the limit."""
    if head.content_length.isdigit():
        check_length(int(head.content_length[:MAX_DIGITS]), limit)
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Abandoned("the caller went away while sending the body")
        chunks.append(message.get("body", b""))
        size += len(chunks[-1])
        check_length(size, limit)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _while_connected(receive: Receive, submission: Submission) -> Answer:
    """Await the answer; give it up when the client goes."""
    if submission.is_settled:
        return await submission.answer()
    watchers: list[asyncio.Task[None]] = []

    def watch() -> None:
        watchers.append(asyncio.create_task(_abandon_on_disconnect(receive, submission)))

    timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, watch)
    try:
        return await submission.answer()
    finally:
        timer.cancel()
        for watcher in watchers:
            watcher.cancel()


async def _abandon_on_disconnect(receive: Receive, submission: Submission) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    submission.abandon()


def _timeout_s(given: bytes, most_s: float) -> float:
    if not given:
        return most_s
    try:
        timeout_ms = float(given)
    except ValueError:
        timeout_ms = math.nan
    if not timeout_ms > 0 or math.isinf(timeout_ms):
        shown = given.decode("latin-1")
        raise InvalidInput(f"X-Torchlane-Timeout-Ms must be a positive number, got {shown!r}")
    return min(timeout_ms / 1000, most_s)


def _version(given: str | None) -> int | None:
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > MAX_DIGITS:
        raise ModelNotFound("a version is a whole number; GET /models lists what is loaded")
    return int(given)


def _cache_header(counts: CacheCounts, *, many: bool) -> str:
    if many:
        return f"hit={counts.hit}, miss={counts.miss}, joined={counts.joined}"
    return "hit" if counts.hit else "miss" if counts.miss else "joined"


def _server_timing(decode_s: float, answer: Answer, encode_s: float) -> str:
    return (
        f"decode;dur={decode_s * 1e3:.3f}, queue;dur={answer.queue_s * 1e3:.3f}, "
        f"compute;dur={answer.compute_s * 1e3:.3f}, encode;dur={encode_s * 1e3:.3f}"
    )
