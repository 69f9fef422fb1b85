"""What callers of a handler get, with real processes."""

from __future__ import annotations

import asyncio
import time
import venv
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from app import errors
from app.handlers.contract import CallReply, PoolLoad
from app.handlers.pool import ProcessPool
from tests.unit.app.handlers.pools import (
    CountedMetrics,
    ScriptedPlane,
    request,
    serving,
    settled,
    spec_of,
    write,
)

ECHO = """
async def predict(self, request):
    return {"pid": os.getpid(), **request.json()}
"""
SLOW = """
async def predict(self, request):
    await asyncio.sleep(request.json()["s"])
    return {"pid": os.getpid()}
"""


async def test_answer_of_async_code(tmp_path: Path) -> None:
    async with serving(tmp_path, ECHO) as served:
        assert (await served.ask(b'{"a": 1}'))["a"] == 1
        assert served.pool.works()
        assert served.pool.problem() is None
        assert served.metrics.codes == ["ok"]


async def test_answer_of_a_thread_which_calls_models(tmp_path: Path) -> None:
    methods = """
    models = ("double",)
    def setup(self):
        self.first = self.call_sync("double", 1)
    def predict(self, request):
        return [self.first, self.call_sync("double", 2), self.call_many_sync("double", [3, 4])]
    """
    async with serving(tmp_path, methods) as served:
        assert await served.ask() == [1, 2, [3, 4]]
        owners = [each and each.request_id for each, _ in served.plane.calls]
        assert owners == [None, "id-1", "id-1"]


async def test_forwarded_request_is_sent_as_it_came(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        return await self.call("double", request, version=3)
    """
    async with serving(tmp_path, methods) as served:
        assert await served.ask(b'{"input": [1.50]}') == [1.5]
        ((_, call),) = served.plane.calls
        assert (call.body, call.media_type, call.version) == (
            b'{"input": [1.50]}',
            "application/json",
            3,
        )


async def test_handler_gets_what_the_caller_sent(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        return [request.request_id, request.query, request.accept, 1 < request.left_s < 20]
    """
    async with serving(tmp_path, methods) as served:
        query = {"a": ["1", "2"]}
        answer = await served.ask(accept="application/json", query=query)
        assert answer == ["id-1", query, "application/json", True]


async def test_batch_holds_what_waited_and_each_has_its_own_outcome(tmp_path: Path) -> None:
    methods = """
    max_batch_size = 3
    async def predict_batch(self, requests):
        xs = [each.json() for each in requests]
        return [ValueError("odd") if x == 2 else [x, len(xs)] for x in xs]
    """
    async with serving(tmp_path, methods, max_batch_size=3) as served:
        jobs = [served.submit(b"%d" % x) for x in range(4)]
        assert orjson.loads((await settled(jobs[0])).body) == [0, 3]
        with pytest.raises(errors.HandlerFailed) as failure:
            await settled(jobs[2])
        assert failure.value.reason == "ValueError: odd"
        assert "odd" not in str(failure.value)
        assert orjson.loads((await settled(jobs[3])).body) == [3, 1]


async def test_wrong_number_of_answers_fails_the_batch(tmp_path: Path) -> None:
    methods = """
    def predict_batch(self, requests):
        return []
    """
    async with serving(tmp_path, methods, max_batch_size=3) as served:
        with pytest.raises(errors.HandlerFailed) as failure:
            await served.ask()
        assert "got a list of 0 for 1 requests" in failure.value.reason


async def test_error_of_a_model_passes_through(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        try:
            return await self.call("double", 1)
        except torchlane.CallFailed as error:
            if request.json():
                raise
            return [error.status, error.code, error.retry_after_ms]
    """
    async with serving(tmp_path, methods) as served:
        served.plane.reply = CallReply(503, code="overloaded", error="busy", retry_after_ms=1500)
        assert await served.ask(b"0") == [503, "overloaded", 1500]
        with pytest.raises(errors.Overloaded, match="busy") as failure:
            await served.ask(b"1")
        assert failure.value.retry_after_s == 1.5


async def test_model_that_is_not_named_cannot_be_called(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        return await self.call("secret", 1)
    """
    async with serving(tmp_path, methods) as served:
        with pytest.raises(errors.Forbidden, match="'secret' in `models`, which has double"):
            await served.ask()
        assert served.plane.calls == []


@pytest.mark.parametrize(
    ("returned", "reason"),
    [
        ("{1}", "JSON has no form for an object of type set"),
        ("{'a': [1.0, float('nan')]}", "JSON has no NaN and no infinity at .a[1]; replace it"),
        ("b'x'", "bytes have no media type; return torchlane.Response"),
    ],
)
async def test_what_cannot_be_sent_is_refused(tmp_path: Path, returned: str, reason: str) -> None:
    async with serving(tmp_path, f"async def predict(self, request):\n    return {returned}") as s:
        with pytest.raises(errors.HandlerFailed) as failure:
            await s.ask()
        assert reason in failure.value.reason


async def test_caller_is_told_what_is_wrong_with_its_input(tmp_path: Path) -> None:
    top = """
    from pydantic import BaseModel
    class Item(BaseModel):
        price: float
    """
    methods = """
    async def predict(self, request):
        return request.json(Item)
    """
    async with serving(tmp_path, methods, top=top) as served:
        assert await served.ask(b'{"price": 2}') == {"price": 2.0}
        with pytest.raises(errors.InvalidInput, match=r"price: .* valid number") as failure:
            await served.ask(b'{"price": "x"}')
        assert failure.value.details[0]["path"] == "price"


async def test_answer_that_accept_excludes(tmp_path: Path) -> None:
    async with serving(tmp_path, ECHO) as served:
        with pytest.raises(errors.NotAcceptable, match="application/json"):
            await served.ask(accept="image/png")


async def test_interpreter_that_has_nothing_but_its_standard_library(tmp_path: Path) -> None:
    top = """
    from importlib.util import find_spec
    """
    methods = """
    models = ("double",)
    async def predict(self, request):
        return [find_spec("numpy") is None, await self.call("double", 1), request.json()]
    """
    venv.create(tmp_path / "bare", symlinks=True)
    python = str(tmp_path / "bare/bin/python")
    async with serving(tmp_path, methods, top=top, python=python) as served:
        assert await served.ask(b"2") == [True, 1, 2]


async def test_large_bodies_both_ways(tmp_path: Path) -> None:
    methods = """
    async def predict(self, request):
        reply = await self.call("double", request.body)
        return torchlane.Response(request.body, "image/png", 200 + (reply["bytes"] == 8 << 20))
    """
    body = bytes(8 << 20)
    async with serving(tmp_path, methods) as served:
        answers = await asyncio.gather(*(settled(served.submit(body)) for _ in range(8)))
        assert all((each.status, each.body) == (201, body) for each in answers)


async def test_processes_share_the_load(tmp_path: Path) -> None:
    async with serving(tmp_path, SLOW, processes=2, concurrency=1) as served:
        answers = await asyncio.gather(*(served.ask(b'{"s": 0.2}') for _ in range(4)))
        pids = [each["pid"] for each in answers]
        assert sorted(map(pids.count, set(pids))) == [2, 2]
        assert served.pool.load().processes == 2


async def test_full_queue_rejects(tmp_path: Path) -> None:
    async with serving(tmp_path, SLOW, concurrency=1, queue_limit=2) as served:
        jobs = [served.submit(b'{"s": 0.1}') for _ in range(3)]
        assert served.pool.load().queued == 2
        with pytest.raises(errors.Overloaded, match="2 requests wait"):
            served.submit()
        await asyncio.gather(*map(settled, jobs))


async def test_request_that_would_be_late_is_rejected(tmp_path: Path) -> None:
    async with serving(tmp_path, SLOW, concurrency=1) as served:
        await served.ask(b'{"s": 0.3}')
        job = served.submit(b'{"s": 0.3}')
        with pytest.raises(errors.Overloaded, match="cannot meet the 200 ms deadline"):
            served.submit(timeout_s=0.2)
        with pytest.raises(errors.DeadlineExceeded):
            served.submit(timeout_s=-1.0)
        await settled(job)


async def test_caller_that_leaves_the_queue_costs_no_run(tmp_path: Path) -> None:
    methods = """
    ran = 0
    async def predict(self, request):
        self.ran += 1
        await asyncio.sleep(0.1)
        return self.ran
    """
    async with serving(tmp_path, methods, concurrency=1) as served:
        first, second = served.submit(), served.submit()
        second.abandon()
        with pytest.raises(errors.Abandoned):
            second.result()
        await settled(first)
        assert await served.ask() == 2


async def test_drain_answers_what_is_open_and_fails_the_rest(tmp_path: Path) -> None:
    async with serving(tmp_path, SLOW) as served:
        quick, slow = served.submit(b'{"s": 0.2}'), served.submit(b'{"s": 20}')
        drain = asyncio.create_task(served.pool.drain(1.0))
        await asyncio.sleep(0)
        with pytest.raises(errors.ShuttingDown):
            served.submit()
        await drain
        assert orjson.loads(quick.result().body)
        with pytest.raises(errors.ShuttingDown):
            slow.result()
    assert not served.pool.works()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("x = (", "SyntaxError"),
        ("class Other: pass", "has no class Shop that is a torchlane.Handler"),
        ("import torchlane\nclass Shop(torchlane.Handler): pass", "shop:Shop has no predict"),
        ("import os; os._exit(3)", "it exited with code 3"),
    ],
)
async def test_handler_that_cannot_start(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "shop.py").write_text(text)
    pool = ProcessPool(spec_of(tmp_path), ScriptedPlane(), CountedMetrics())
    with pytest.raises(errors.HandlerFailed) as failure:
        await pool.start()
    assert reason in str(failure.value)
    assert not pool.works()


async def test_interpreter_that_does_not_exist(tmp_path: Path) -> None:
    spec = spec_of(write(tmp_path, ECHO), python="/nowhere/python")
    pool = ProcessPool(spec, ScriptedPlane(), CountedMetrics())
    with pytest.raises(errors.HandlerFailed, match="cannot start /nowhere/python"):
        await pool.start()


async def test_start_takes_too_long(tmp_path: Path) -> None:
    spec = spec_of(write(tmp_path, ECHO, top="time.sleep(60)"))
    pool = ProcessPool(spec, ScriptedPlane(), CountedMetrics(), ready_s=0.3)
    began = time.monotonic()
    with pytest.raises(errors.HandlerFailed, match=r"not ready within 0\.3 s"):
        await pool.start()
    assert time.monotonic() - began < 30


async def test_requests_that_come_together_are_all_accepted_or_none(tmp_path: Path) -> None:
    async with serving(tmp_path, SLOW, concurrency=2, queue_limit=3) as served:
        jobs = served.pool.submit([request(b'{"s": 0.1}') for _ in range(3)])
        assert served.pool.load() == PoolLoad(1, 2, 1, served.pool.load().memory_bytes)
        with pytest.raises(errors.Overloaded, match="1 requests wait"):
            served.pool.submit([request() for _ in range(3)])
        assert served.pool.load().queued == 1
        with pytest.raises(errors.PayloadTooLarge, match=r"4 items in one request, .* takes 3"):
            served.pool.submit([request() for _ in range(4)])
        await asyncio.gather(*map(settled, jobs))


async def test_batch_has_one_caller_and_its_calls_have_the_longest_deadline(tmp_path: Path) -> None:
    methods = """
    models = ("double",)
    async def predict_batch(self, requests):
        await self.call("double", 1)
        return [len(requests)] * len(requests)
    """
    async with serving(tmp_path, methods, max_batch_size=8, concurrency=1) as served:
        ours = [request(timeout_s=each) for each in (5.0, 20.0, 10.0)]
        other = replace(request(), caller="other")
        jobs = [served.pool.submit([each])[0] for each in (ours[0], other, *ours[1:])]
        sizes = [orjson.loads((await settled(job)).body) for job in jobs]
        assert sizes == [3, 1, 3, 3]
        assert [each for each, _ in served.plane.calls] == [ours[1], other]


async def test_drain_still_takes_requests_of_other_handlers(tmp_path: Path) -> None:
    async with serving(tmp_path, SLOW) as served:
        job = served.submit(b'{"s": 0.3}')
        drain = asyncio.create_task(served.pool.drain(5.0))
        await asyncio.sleep(0)
        (inner,) = served.pool.submit([replace(request(b'{"s": 0}'), depth=1)])
        await settled(inner)
        await settled(job)
        await drain
