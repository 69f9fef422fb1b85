"""The same error in every protocol: its status, its shape, and when to come again."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from app.api.errors import FORM, error_answer
from app.api.routes import dialects_with
from app.errors import BackendFailed, InvalidInput, ModelNotReady, Overloaded, TorchlaneError

FULL = Overloaded("full", retry_after_s=0.25)


@pytest.mark.parametrize(
    ("path", "error", "status", "body"),
    [
        ("/v2/models/m/infer", FULL, 503, {"error": "full"}),
        (
            "/predictions/m",
            FULL,
            503,
            {"code": 503, "type": "ServiceUnavailableException", "message": "full"},
        ),
        (
            "/v1/embeddings",
            FULL,
            503,
            {
                "error": {
                    "message": "full",
                    "type": "server_error",
                    "param": None,
                    "code": "overloaded",
                }
            },
        ),
        ("/rerank", FULL, 429, {"error": "full", "error_type": "Overloaded"}),
        ("/", FULL, 429, {"error": "full", "error_type": "Overloaded"}),
        ("/v1/models/{name}:predict", InvalidInput("no"), 400, {"error": "no"}),
        ("/v1/models/{name}:predict", FULL, 503, {"error": "full"}),
        ("/invocations", InvalidInput("no"), 400, {"error_code": "BAD_REQUEST", "message": "no"}),
        ("/invocations", FULL, 503, {"error_code": "TEMPORARILY_UNAVAILABLE", "message": "full"}),
        ("/embed", BackendFailed("bad"), 424, {"error": "bad", "error_type": "Backend"}),
        ("/classify", ModelNotReady("soon"), 503, {"error": "soon", "error_type": "Unhealthy"}),
        ("/classify", InvalidInput("no"), 422, {"error": "no", "error_type": "Validation"}),
        (
            "/embeddings",
            InvalidInput("no", [{"param": "input"}]),
            400,
            {
                "error": {
                    "message": "no",
                    "type": "invalid_request_error",
                    "param": "input",
                    "code": "invalid_input",
                }
            },
        ),
    ],
)
def test_shape_and_status(path: str, error: TorchlaneError, status: int, body: Any) -> None:
    found, headers, content = error_answer({FORM: dialects_with().of_route(path).errors}, error)
    assert (found, orjson.loads(content)) == (status, body)
    fields = dict(headers)
    assert fields.get(b"retry-after") == (b"1" if error is FULL else None)
    assert fields.get(b"retry-after-ms") == (b"250.0" if error is FULL else None)
