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

class Unready(torchlane.CallFailed):
    def __init__(self):
        pass

async def exits():
    sys.exit(4)

def changed(name, value):
    response = torchlane.Response(b"", "a/b")
    setattr(response, name, value)
    return response

def typed(media_type):
    from torchlane.handlers.content import Content
    return Content(b"", media_type)

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
        ("raise asyncio.CancelledError()", "CancelledError"),
        ("await asyncio.gather(exits())", "SystemExit: 4"),
        ("raise type('A' * 300_000, (Exception,), {})()", "AAA..."),
        ("raise Unready()", "Unready cannot be sent: AttributeError"),
        ("raise torchlane.CallFailed('m', 500, '\\ud800', 'x', 10**400)", "x"),
        ("raise torchlane.CallFailed('m', 500, 7, 'x')", "CallFailed cannot be sent"),
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
        ("return torchlane.Response(b'', 'a' * 300_000 + '/b')", "a media type is ASCII text"),
        ("return torchlane.Response('\\ud800', 'a/b')", "surrogates not allowed"),
        ("return changed('status', 'x')", "from 200 to 599"),
        ("return changed('media_type', 'image/\\u00fc')", "a media type is ASCII text"),
        ("return changed('body', 7)", "the body of a Response is bytes or str"),
        ("await self.call('\\ud800', 1)", "is not the name of a model"),
        ("await self.call('a' * 300_000, 1)", "is not the name of a model"),
        ("await self.call('../admin', 1)", "is not the name of a model"),
        ("await self.call(3, 1)", "the name of a model is a text"),
        ("await self.call('double', 1, True)", "a version is a whole number"),
        ("await self.call('double', 1, 0)", "a version is a whole number"),
        ("await self.call('double', 1, 2**63)", "a version is a whole number"),
        ("await self.call('double', 1, 10**400)", "a version is a whole number"),
        ("await self.call('double', 1, '1')", "a version is a whole number"),
        ("await self.call('double', typed('a/' + 'b' * 300_000))", "the limit is 262144"),
        ("await self.call('double', typed('a/\\udcff'))", "half of a surrogate pair"),
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
        ("[{'n': 10**400, 'i': 3}]", [{"n": str(10**400), "i": 3}]),
        # No more than 128 KiB of JSON, in which a control character takes six bytes.
        (
            "[{str(i): '\\0' * 500 for i in range(9)}] * 50",
            [{str(i): "\0" * 500 for i in range(8)}] * 5,
        ),
    ],
)
async def test_details_are_what_json_has(
    tmp_path: Path, details: str, expected: list[dict[str, Any]]
) -> None:
    async with serving(tmp_path, DOES, top=TOP) as served:
        error = await beside_another(served, f"raise invalid({details})")
    assert isinstance(error, errors.InvalidInput)
    assert list(error.details) == expected


async def test_mistake_of_the_caller_without_a_reason(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES, top=TOP) as served:
        error = await beside_another(served, "raise torchlane.InvalidInput('')")
    assert isinstance(error, errors.InvalidInput)
    assert str(error) == "the handler gave no reason"


async def test_details_that_cannot_be_read(tmp_path: Path) -> None:
    async with serving(tmp_path, DOES, top=TOP) as served:
        error = await beside_another(served, "raise invalid([{'a': Raises()}])")
    assert isinstance(error, errors.HandlerFailed)
    assert error.reason == "InvalidInput cannot be sent: SystemExit: 3"


async def test_tasks_that_users_code_cancels_answer(tmp_path: Path) -> None:
    cancels = "for task in asyncio.all_tasks() - {asyncio.current_task()}:\n"
    cancels += "  if '_run' in task.get_coro().__qualname__: task.cancel()"
    async with serving(tmp_path, DOES, top=TOP) as served:
        begun = served.submit(b'"wait"')
        await asyncio.sleep(0.1)
        served.submit(b'"time.sleep(0.3)"')
        await asyncio.sleep(0.1)
        cancelling = served.submit(orjson.dumps(cancels))
        unbegun = served.submit(b'"wait"')  # the process reads both together
        await settled(cancelling)
        for job in (begun, unbegun):
            with pytest.raises(errors.HandlerFailed) as caught:
                await settled(job)
            assert caught.value.reason.startswith("CancelledError")
        assert served.metrics.causes == []


@pytest.mark.parametrize(
    "name", ["SystemExit", "KeyboardInterrupt", "StopIteration", "MemoryError"]
)
async def test_exceptions_of_a_thread(tmp_path: Path, name: str) -> None:
    methods = f"""
    def predict(self, request):
        raise {name}()
    """
    async with serving(tmp_path, methods) as served:
        with pytest.raises(errors.HandlerFailed) as caught:
            await settled(served.submit())
        assert name in caught.value.reason
        assert served.metrics.causes == []


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


async def test_batch_that_was_cancelled_is_not_run_again(tmp_path: Path) -> None:
    methods = """
    ran = []
    async def predict_batch(self, requests):
        rows = [request.json() for request in requests]
        if rows == ["ran"]:
            return [self.ran]
        self.ran.append(rows)
        await asyncio.sleep(20)
    """
    async with serving(tmp_path, methods, max_batch_size=8, concurrency=2) as served:
        jobs = [served.submit(b"1"), served.submit(b"2")]
        await asyncio.sleep(0.2)
        for job in jobs:
            job.abandon()
        assert await served.ask(b'"ran"') == [[1, 2]]


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_requests_of_a_split_batch_end_and_call_on_their_own(
    tmp_path: Path, kind: str
) -> None:
    """One that hangs alone is cancelled alone, and the calls of each are its own."""
    call = "await self.call" if kind == "async def" else "self.call_sync"
    methods = f"""
    models = ("double",)
    {kind} predict_batch(self, requests):
        rows = [request.json() for request in requests]
        if len(rows) > 1:
            raise ValueError("not together")
        return [{call}("double", rows[0])]
    """
    async with serving(tmp_path, methods, max_batch_size=8) as served:
        served.plane.holds = True
        first, second = served.submit(b"1"), served.submit(b"2")
        await served.until(lambda: len(served.plane.calls) == 1)
        first.abandon()
        served.plane.holds = False
        await served.until(lambda: len(served.plane.cancelled) == 1)
        assert await code_or_body(second) == 2
        assert [orjson.loads(call.body) for _, call in served.plane.calls] == [
            {"input": 1},
            {"input": 2},
        ]
        assert served.metrics.causes == []


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
        ("def predict(self, a, b): pass", "must take one argument besides self"),
        (
            "def predict(self, a: 'Nothing'): pass",
            "the annotation 'Nothing' of a cannot be resolved",
        ),
        ("def predict(self): pass", "must take one argument besides self"),
        ("def predict(self, a: dict): pass", "use torchlane.Request or a pydantic model"),
        ("def predict(self, a: list): pass", "use torchlane.Request or a pydantic model"),
    ],
)
async def test_argument_that_requests_cannot_be(tmp_path: Path, methods: str, reason: str) -> None:
    with pytest.raises(errors.HandlerFailed) as caught:
        async with serving(tmp_path, f"{methods}\n"):
            pass
    assert reason in str(caught.value)


@pytest.mark.parametrize("annotation", ["Order", "dict[str, Order]", "list[int]"])
async def test_batch_is_annotated_as_a_list(tmp_path: Path, annotation: str) -> None:
    (tmp_path / "orders.py").write_text(ORDER)
    methods = f"def predict_batch(self, a: {annotation}): pass"
    with pytest.raises(errors.HandlerFailed, match="a list of a pydantic model"):
        async with serving(tmp_path, methods, top="from orders import Order", max_batch_size=8):
            pass


@pytest.mark.parametrize(
    ("argument", "size"),
    [
        ("request: torchlane.Request", 1),
        ("request: 'torchlane.Request', more: int = 1", 1),
        ("requests: list[torchlane.Request]", 8),
        ("requests: Sequence[torchlane.Request]", 8),
        ("requests: list", 8),
    ],
)
async def test_request_is_passed_as_it_is(tmp_path: Path, argument: str, size: int) -> None:
    """What the other annotations name is not looked up."""
    name, _, _ = argument.partition(":")
    method = "predict" if size == 1 else "predict_batch"
    value = f"{name}.json()" if size == 1 else f"[each.json() for each in {name}]"
    methods = f"async def {method}(self, {argument}) -> 'Nothing':\n    return {value}\n"
    top = "from collections.abc import Sequence"
    async with serving(tmp_path, methods, top=top, max_batch_size=size) as served:
        assert await served.ask(b"5") == 5


async def test_model_without_a_schema_is_served(tmp_path: Path) -> None:
    top = """
    from collections.abc import Callable
    from pydantic import BaseModel
    class Order(BaseModel):
        price: float
        then: Callable[[], None] | None = None
    """
    methods = "async def predict(self, order: Order):\n    return order.price\n"
    async with serving(tmp_path, methods, top=top) as served:
        assert await served.ask(b'{"price": 2}') == 2
