"""The four prediction routes: parse, one await, shape."""

from __future__ import annotations

import asyncio
import math
import time

from fastapi import Request, Response
from starlette.requests import ClientDisconnect

from app.api.payloads import (
    JSON,
    answer_media_type,
    binary_answer,
    json_answer,
    read_body,
    read_items,
)
from app.api.service import Service
from app.engine.engine import Prediction
from app.errors import Abandoned, InvalidInput
from app.types import Answer, CacheCounts

TIMEOUT_HEADER = "x-torchlane-timeout-ms"


async def serve(service: Service, request: Request, *, many: bool) -> Response:
    """Answer one request for predictions.

    Raises:
        TorchlaneError: whatever kept it from an answer.
    """
    arrived = time.perf_counter()
    deadline = service.engine.now() + _timeout_s(request, service.limits.timeout_s)
    model = service.lifecycle.resolve(
        request.path_params.get("name"), request.path_params.get("version")
    )
    try:
        body = await read_body(request, service.limits.max_body_bytes)
    except ClientDisconnect as error:
        raise Abandoned("the caller went away while sending the body") from error
    content_type = request.headers.get("content-type", JSON)
    items = read_items(
        model.codec, content_type, body, many=many, max_items=service.limits.max_items
    )
    decoded = time.perf_counter()
    answer = await _while_connected(request, service.engine.submit(model.id, items, deadline))
    answered = time.perf_counter()
    media_type = answer_media_type(request.headers.get("accept", ""))
    if media_type == JSON:
        content = json_answer(model, answer.outcomes, many=many)
    else:
        content = binary_answer(model, media_type, answer.outcomes, many=many)
    headers = {
        "X-Torchlane-Cache": _cache_header(answer.cache, many=many),
        "Server-Timing": _server_timing(decoded - arrived, answer, time.perf_counter() - answered),
    }
    return Response(content, headers=headers, media_type=media_type)


async def _while_connected(request: Request, prediction: Prediction) -> Answer:
    """Await the answer; give it up when the client goes. A settled one costs no watcher."""
    if prediction.is_settled:
        return await prediction.answer()
    watcher = asyncio.create_task(_abandon_on_disconnect(request, prediction))
    try:
        return await prediction.answer()
    finally:
        watcher.cancel()


async def _abandon_on_disconnect(request: Request, prediction: Prediction) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
    prediction.abandon()


def _timeout_s(request: Request, most_s: float) -> float:
    given = request.headers.get(TIMEOUT_HEADER)
    if given is None:
        return most_s
    try:
        timeout_ms = float(given)
    except ValueError:
        timeout_ms = math.nan
    if not timeout_ms > 0 or math.isinf(timeout_ms):
        raise InvalidInput(f"X-Torchlane-Timeout-Ms must be a positive number, got {given!r}")
    return min(timeout_ms / 1000, most_s)


def _cache_header(counts: CacheCounts, *, many: bool) -> str:
    if many:
        return f"hit={counts.hit}, miss={counts.miss}, joined={counts.joined}"
    return "hit" if counts.hit else "miss" if counts.miss else "joined"


def _server_timing(decode_s: float, answer: Answer, encode_s: float) -> str:
    return (
        f"decode;dur={decode_s * 1e3:.3f}, queue;dur={answer.queue_s * 1e3:.3f}, "
        f"compute;dur={answer.compute_s * 1e3:.3f}, encode;dur={encode_s * 1e3:.3f}"
    )
