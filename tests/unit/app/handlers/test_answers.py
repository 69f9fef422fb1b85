"""Whatever a handler's code returns or raises, its own request alone gets that answer."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest

from app import errors
from tests.unit.app.handlers.pools import Served, serving, settled

# Evaluates what the request says, beside a request that waits.
DOES = """
async def predict(self, request):
    asked = request.json()
    if asked == "wait":
        await asyncio.sleep(0.5)
        return "waited"
    names = {**globals(), "self": self, "request": request}
    exec("async def run():\\n " + asked, names)
    return await names["run"]()
"""
TOP = """
import dataclasses, json
import numpy as np

class Raises(Exception):
    def __str__(self):
        raise SystemExit(3)

class NoText(Exception):
    def __str__(self):
        return 7

def invalid(details):
    return torchlane.InvalidInput("it is wrong", details)
"""


async def beside_another(served: Served, text: str) -> errors.TorchlaneError:
    """The error of a request; the one beside it is answered."""
    waiting = served.submit(b'"wait"')
    with pytest.raises(errors.TorchlaneError) as caught:
        await settled(served.submit(orjson.dumps(text)))
    assert (await settled(waiting)).body == b'"waited"'
    assert served.metrics.causes == []
    return caught.value


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("raise Raises()", "its message raises SystemExit"),
        ("raise NoText()", "NoText"),
        ("raise SystemExit(2)", "SystemExit: 2"),
        ("raise KeyboardInterrupt()", "KeyboardInterrupt"),
        ("raise GeneratorExit()", "GeneratorExit"),
        ("raise StopAsyncIteration()", "StopAsyncIteration"),
        ("raise ValueError('\\ud800' * 100_000)", "\\ud800"),
        ("return '\\ud800'", "half of a surrogate pair"),
        ("return torchlane.Response(b'', 'image/\\u00fc')", "a media type is ASCII text"),
        ("return torchlane.Response(b'', 'a/b' + 'c' * 300_000)", "a media type is ASCII text"),
        ("return torchlane.Response(b'', 'a/b\\r\\nx: y')", "a media type is ASCII text"),
        ("return torchlane.Response(b'x', 'a/b', 204)", "the status 204 has no body"),
        ("return torchlane.Response(b'', 'a/b', 205)", "the status 205 has no body"),
        ("return torchlane.Response(b'', 'a/b', 304)", "the status 304 has no body"),
        ("return torchlane.Response(b'', 'a/b', 100)", "from 200 to 599"),
        ("return torchlane.Response(b'', 'a/b', True)", "from 200 to 599"),
        ("await self.call('\\ud800', 1)", "is not the name of a model"),
        ("await self.call('a' * 300_000, 1)", "is not the name of a model"),
        ("await self.call('../admin', 1)", "is not the name of a model"),
        ("await self.call(3, 1)", "the name of a model is a text"),
        ("await self.call('double', 1, True)", "a version is a whole number"),
        ("await self.call('double', 1, -1)", "a version is a whole number"),
        ("await self.call('double', '\\ud800')", "half of a surrogate pair"),
    ],
)
async def test_failure_is_that_of_its_request_alone(tmp_path: Path, text: str, told: str) -> None:
    async with serving(tmp_path, DOES, top=TOP) as served:
        error = await beside_another(served, text)
    assert isinstance(error, errors.HandlerFailed)
    assert told in error.reason


@pytest.mark.parametrize(
    ("details", "expected"),
    [
        ("[{1, 2}]", [{"error": "{1, 2}"}]),
        ("[{'path': np.float32(2), 'x': float('nan')}]", [{"path": "2.0", "x": "nan"}]),
        ("[{'path': '\\ud800', 3: None}]", [{"path": "\\ud800", "3": "None"}]),
        ("['a' * 300_000] * 50", [{"error": "a" * 500 + "..."}] * 20),
    ],
)
async def test_details_are_what_json_has(
    tmp_path: Path, details: str, expected: list[dict[str, Any]]
) -> None:
    async with serving(tmp_path, DOES, top=TOP) as served:
        error = await beside_another(served, f"raise invalid({details})")
    assert isinstance(error, errors.InvalidInput)
    assert list(error.details) == expected


async def test_details_that_cannot_be_read(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES, top=TOP) as served:
        error = await beside_another(served, "raise invalid([{'a': Raises()}])")
    assert isinstance(error, errors.HandlerFailed)
    assert error.reason == "InvalidInput, which cannot be sent: its fields raise SystemExit"


BATCH = """
runs = 0
async def predict_batch(self, requests):
    self.runs += 1
    rows = [request.json() for request in requests]
    if 0 in rows:
        raise ZeroDivisionError("zero")
    if 9 in rows:
        return rows[1:]
    return [[row, len(rows), self.runs] for row in rows]
"""


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_failed_batch_is_run_again_one_by_one(tmp_path: Path, kind: str) -> None:
    methods = BATCH.replace("async def", kind)
    async with serving(tmp_path, methods, max_batch_size=8) as served:
        jobs = [served.submit(body) for body in (b"1", b"0", b"{", b"2")]
        outcomes = [await code_or_body(job) for job in jobs]
        assert outcomes == [[1, 1, 2], "handler_failed", "invalid_input", [2, 1, 5]]
        assert await code_or_body(served.submit(b"3")) == [3, 1, 6]
        alone = served.submit(b"9")
        with pytest.raises(errors.HandlerFailed) as caught:
            await settled(alone)
        assert "got a list of 0 for 1 requests" in caught.value.reason


async def code_or_body(job: Any) -> Any:
    try:
        return json.loads((await settled(job)).body)
    except errors.TorchlaneError as error:
        return error.code


async def test_requests_that_were_cancelled_are_not_run_again(tmp_path: Path) -> None:
    methods = """
    ran = []
    async def predict_batch(self, requests):
        rows = [request.json() for request in requests]
        if rows == ["ran"]:
            return [self.ran]
        self.ran.append(rows)
        await asyncio.sleep(0.3)
        raise ValueError
    """
    async with serving(tmp_path, methods, max_batch_size=8, concurrency=2) as served:
        first, second = served.submit(b"1"), served.submit(b"2")
        await asyncio.sleep(0.1)
        first.abandon()
        assert await code_or_body(second) == "handler_failed"
        assert await served.ask(b'"ran"') == [[1, 2], [2]]


ORDER = """
from __future__ import annotations
from pydantic import BaseModel

class Order(BaseModel):
    price: float
"""


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_annotation_validates_the_body(tmp_path: Path, kind: str) -> None:
    methods = f"{kind} predict(self, order: Order):\n    return order.price * 2\n"
    (tmp_path / "orders.py").write_text(ORDER)
    async with serving(tmp_path, methods, top="from orders import Order") as served:
        assert await served.ask(b'{"price": 2}') == 4
        with pytest.raises(errors.InvalidInput) as caught:
            await served.ask(b'{"price": "x"}')
        assert caught.value.details[0]["path"] == "price"


async def test_annotation_of_a_batch_validates_each_body(tmp_path: Path) -> None:
    methods = """
    async def predict_batch(self, orders: "list[Order]"):
        return [[order.price, len(orders)] for order in orders]
    """
    (tmp_path / "orders.py").write_text(ORDER)
    async with serving(
        tmp_path, methods, top="from orders import Order", max_batch_size=8
    ) as served:
        jobs = [served.submit(body) for body in (b'{"price": 1}', b"{}", b'{"price": 3}')]
        assert [await code_or_body(job) for job in jobs] == [[1, 2], "invalid_input", [3, 2]]


@pytest.mark.parametrize(
    ("methods", "reason"),
    [
        ("def predict(self, a, b): pass", "must take one argument besides self, got (a, b)"),
        ("def predict(self, a: 'Nothing'): pass", "the annotation of a cannot be read"),
        ("def predict(self, a: dict): pass", "use torchlane.Request or a pydantic model"),
    ],
)
async def test_argument_that_requests_cannot_be(tmp_path: Path, methods: str, reason: str) -> None:
    with pytest.raises(errors.HandlerFailed) as caught:
        async with serving(tmp_path, f"{methods}\n"):
            pass
    assert reason in str(caught.value)
