"""What handlers get when they call other handlers: statuses, JSON and other media types."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.handlers import asks, write_handler
from tests.integration.harness import Api, serving

INNER = """
import numpy as np
import torchlane
from PIL import Image

class Inner(torchlane.Handler):
    async def predict(self, request):
        asked = request.json()
        if asked == "picture":
            return Image.new("RGB", (2, 2))
        if asked == "array":
            return np.ones(2, np.float32)
        if asked == "fail":
            raise ValueError("no")
        return torchlane.Response(*asked) if isinstance(asked, list) else asked
"""
OUTER = """
import torchlane

class Outer(torchlane.Handler):
    models = ("inner",)

    async def predict(self, request):
        asked = request.json()
        try:
            if asked.get("many"):
                return [shown(each) for each in await self.call_many("inner", asked["many"])]
            return shown(await self.call("inner", asked["one"]))
        except torchlane.CallFailed as error:
            if not asked.get("catches"):
                raise
            return [error.status, error.code, str(error)]

def shown(answer):
    if isinstance(answer, torchlane.Response):
        return [answer.media_type, answer.status, len(answer.body) > 0]
    return answer
"""


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    write_handler(tmp_path, "inner", 1, INNER, [asks(1, 1)], entry="inner:Inner")
    write_handler(
        tmp_path, "outer", 1, OUTER, [asks({"one": 1}, 1)], ("inner",), entry="outer:Outer"
    )
    async with serving(tmp_path, handlers="on", required_models="*", show_model_errors=True) as api:
        yield api


async def test_what_a_call_of_a_handler_returns(api: Api) -> None:
    for asked, answer in (
        ({"one": {"a": [1.5]}}, {"a": [1.5]}),
        ({"one": "array"}, [1, 1]),
        ({"one": ["[1]", "application/json", 201]}, [1]),
        ({"one": "picture"}, ["image/png", 200, True]),
        ({"one": ["hi", "text/plain", 201]}, ["text/plain", 201, True]),
        ({"one": ["", "text/plain", 204]}, ["application/octet-stream", 204, False]),
        ({"many": [1, ["hi", "text/plain", 201]]}, [1, ["text/plain", 200, True]]),
        (
            {"one": ["no", "text/plain", 404], "catches": True},
            [404, "http_error", "the call of inner ended with status 404"],
        ),
        (
            {"many": [1, ["no", "text/plain", 404]], "catches": True},
            [500, "handler_status", "item 1: the handler answered 404: no"],
        ),
    ):
        response = await api.client.post("/models/outer/predict", json=asked)
        assert (response.status_code, response.json()) == (200, answer), asked


async def test_failures_of_a_handler_that_is_called(api: Api) -> None:
    for asked, reason in (
        ({"one": "fail"}, "the handler failed"),
        ({"many": [1, "fail"]}, "item 1: the handler failed"),
        ({"one": ["no", "text/plain", 404]}, "the call of inner ended with status 404"),
        ({"one": ["?", "application/json"]}, "ValueError: the answer of inner is not JSON"),
    ):
        response = await api.client.post("/models/outer/predict", json=asked)
        failure = response.json()
        assert (response.status_code, failure["code"]) == (500, "handler_failed"), asked
        assert failure["details"][0]["handler_error"].startswith(reason)
