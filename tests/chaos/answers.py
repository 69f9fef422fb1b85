"""Reads an answer, and holds each place of it against the item that it belongs to."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.chaos.connection import ChaosAnswer
from tests.chaos.request import JSON, JSON_LENGTH, V2, Request
from tests.chaos.truth import REPEATS, WIDTH, Item, answer
from tests.chaos.verdict import Misjudged, Verdict

STATUSES = {
    "invalid_input": 422,
    "unsupported_media_type": 415,
    "payload_too_large": 413,
    "model_not_found": 404,
    "not_found": 404,
    "method_not_allowed": 405,
    "overloaded": 503,
    "shutting_down": 503,
    "deadline_exceeded": 504,
    "backend_failed": 500,
    "non_finite_output": 500,
    "request_late": 408,  # by the balancer
    "model_not_ready": 503,
    "handler_failed": 500,
    "handler_died": 500,
    "handler_memory": 500,
    "handler_timeout": 504,
}
V2_CODES = {
    **{status: code for code, status in STATUSES.items() if status in (413, 415)},
    404: "model_not_found",
    504: "deadline_exceeded",
    400: "invalid_input",
}


def json_places(request: Request, body: bytes) -> tuple[list[Any], int]:
    """Rows of numbers, or the code of an error; and the version that the answer says."""
    try:
        parsed = json.loads(body)
        told = parsed["predictions"] if request.many else [parsed["prediction"]]
        rows = [each["code"] if "code" in each else each["outputs"]["y"] for each in told]
        model, version = parsed["model"], parsed["version"]
    except (ValueError, KeyError, TypeError) as error:
        raise Misjudged(Verdict.WRONG, f"no prediction: {error}") from error
    if model != request.model:
        raise Misjudged(Verdict.MISDELIVERED, f"by model {model}, not {request.model}")
    return rows, version


def binary_places(request: Request, body: bytes) -> list[Any]:
    array = (
        np.load(io.BytesIO(body), allow_pickle=False)
        if request.form == "npy"
        else np.frombuffer(body, "<f4").reshape(-1, WIDTH * REPEATS.get(request.model, 1))
    )
    return list(np.atleast_2d(array).tolist())


def infer_places(request: Request, got: ChaosAnswer) -> tuple[list[Any], int]:
    """The rows of an infer answer, and the version that it says."""
    length = got.headers.get(JSON_LENGTH.lower())
    size = len(got.body) if length is None else int(length)
    try:
        parsed = json.loads(got.body[:size])
        (output,) = parsed["outputs"]
        shape, model, version = output["shape"], parsed["model_name"], int(parsed["model_version"])
        numbers = output["data"] if length is None else np.frombuffer(got.body[size:], "<f4")
        rows = np.array(numbers, np.float32).reshape(shape).tolist()
    except (ValueError, KeyError, TypeError) as error:
        raise Misjudged(Verdict.WRONG, f"no prediction: {error}") from error
    if model != request.model:
        raise Misjudged(Verdict.MISDELIVERED, f"by model {model}, not {request.model}")
    return rows, version


def check_places(request: Request, places: Sequence[Any]) -> None:
    if len(places) != len(request.items):
        why = f"{len(places)} places for {len(request.items)} items"
        raise Misjudged(Verdict.WRONG, why)


def check_row(model: str, index: int, item: Item, row: Sequence[float]) -> None:
    """A row tells by its number whose it is."""
    if row == answer(model, int(row[2]), item) and item.code is None:
        return
    if row[0] != item.number:
        why = f"place {index} has the answer of item {row[0]:.0f}, not of {item.number}"
        raise Misjudged(Verdict.MISDELIVERED, why)
    right = answer(model, int(row[2]), item)
    at = next((n for n, pair in enumerate(zip(row, right, strict=False)) if len({*pair}) > 1), 0)
    why = f"place {index} is {row[:WIDTH]}, right is {item.code or right[:WIDTH]}; "
    why += f"{len(row)} numbers of {len(right)}, the first that differs is {at}"
    raise Misjudged(Verdict.WRONG, why)


def error_of(
    request: Request, got: ChaosAnswer, failing: Sequence[Item]
) -> tuple[str, dict[str, Any]]:
    """The code of an error, and its body. The protocol's errors have no code: the status tells."""
    try:
        body = json.loads(got.body)
        if request.form in V2:
            (_,) = body.keys()
            refused = "overloaded" if "retry-after" in got.headers else "shutting_down"
            codes = {**V2_CODES, 503: refused, 500: failing[0].code if failing else "internal"}
            return str(codes.get(got.status)), {"error": body["error"]}
        code, named = body["code"], body["request_id"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Misjudged(Verdict.UNEXPECTED, "not the shape that errors have") from error
    if STATUSES.get(code) != got.status or named != request.id:
        raise Misjudged(Verdict.UNEXPECTED, f"{code} with status {got.status}, named {named}")
    return code, body


def check_refusal(request: Request, got: ChaosAnswer, code: str, body: dict[str, Any]) -> None:
    """What a refusal must say beside its code."""
    if got.headers.get("content-type") != JSON:
        raise Misjudged(Verdict.UNEXPECTED, f"an error as {got.headers.get('content-type')}")
    if code == "overloaded" and request.form in V2:
        if int(got.headers.get("retry-after", "0")) < 1:
            raise Misjudged(Verdict.UNEXPECTED, f"no time to retry after: {got.headers}")
    elif code == "overloaded":
        wait_ms = body.get("retry_after_ms", -1)
        whole = max(1, math.ceil(wait_ms / 1000))
        if wait_ms < 0 or abs(int(got.headers.get("retry-after", "-9")) - whole) > 1:
            raise Misjudged(Verdict.UNEXPECTED, f"retry after {wait_ms} ms: {got.headers}")
    if code == "shutting_down" and not got.closes and "overloaded" not in request.refusals:
        raise Misjudged(Verdict.UNEXPECTED, "shutting down, and the connection stays")
    if request.culprit is not None and code == "invalid_input":
        named = [each.get("index") for each in body["details"]]
        if named != [request.culprit]:
            raise Misjudged(Verdict.UNEXPECTED, f"{named} named, {request.culprit} is the culprit")
