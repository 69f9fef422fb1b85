"""What handlers call and answer: whose rights their calls have, what they hold, nested handlers."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.entries import make_key
from tests.handlers import Example, asks, write_handler
from tests.integration.harness import serving, settled
from tests.integration.listening import Doubles, listening
from tests.integration.publishing import Publisher, eventually, lifecycle, states
from tests.integration.wire import request

CALLS = """
import asyncio
import torchlane

class Calls(torchlane.Handler):
    models = ("twice",)

    async def predict(self, request):
        if request.json() == "slow":
            await asyncio.sleep(30)
        rows, *other = request.json() if isinstance(request.json(), list) else [request.json(), 1]
        answers = await self.call_many("twice", [[row, *other] for row in range(rows)])
        return len(answers)
"""
ARRAYS = """
import torchlane

class Arrays(torchlane.Handler):
    models = ("twice",)

    async def predict(self, request):
        one = await self.call("twice", request.json(), arrays=True)
        (also,) = await self.call_many("twice", [request.json()], arrays=True)
        return [{name: array.tolist() for name, array in each.items()} for each in (one, also)]
"""
OUTER = """
import torchlane

class Outer(torchlane.Handler):
    models = ("inner",)

    async def predict(self, request):
        return {"inner": await self.call("inner", request.json())}
"""
ANSWERS = """
import torchlane

class Answers(torchlane.Handler):
    async def predict(self, request):
        status, media_type, body = request.json()
        return torchlane.Response(body, media_type, status)
"""


def publish_calls(root: Path) -> Path:
    publisher = Publisher(root)
    publisher.publish(2, "twice")
    write_handler(
        publisher.repository, "calls", 1, CALLS, [asks(2, 2)], ("twice",), entry="calls:Calls"
    )
    return publisher.repository


async def test_the_only_output_has_its_name(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(2, "twice")
    example = asks([1, 3], [{"y": [2.0, 6.0]}] * 2)
    write_handler(
        publisher.repository, "arrays", 1, ARRAYS, [example], ("twice",), entry="arrays:Arrays"
    )
    async with serving(publisher.repository, handlers="on") as api:
        response = await api.client.post("/models/arrays/predict", json=[4, 5])
        assert response.json() == [{"y": [8.0, 10.0]}] * 2


def publish_outer(repository: Path) -> None:
    write_handler(
        repository,
        "outer",
        1,
        OUTER,
        [asks(1, {"inner": 1})],
        ("inner",),
        entry="outer:Outer",
    )


async def test_calls_count_for_the_caller_and_have_its_rights(tmp_path: Path) -> None:
    repository = publish_calls(tmp_path)
    slow, slow_line = make_key("slow", ["predict"], "6/minute")
    other, other_line = make_key("other", ["predict"])
    file = tmp_path / "models.toml"
    file.write_text('[models.twice]\nallowed_keys = ["slow"]\n')
    keys = f"{slow_line};{other_line}"
    async with serving(repository, handlers="on", api_keys=keys, models_file=file) as api:

        async def ask(key: str, rows: int) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return await api.client.post("/models/calls/predict", json=rows, headers=headers)

        assert (await ask("unknown", 1)).status_code == 401
        assert (await ask(other, 1)).json()["code"] == "forbidden"
        assert (await ask(slow, 3)).json() == 3  # four of the six items
        over = await ask(slow, 3)
        assert (over.status_code, over.json()["code"]) == (429, "rate_limited")


async def test_examples_may_call_every_model_also_through_handlers(tmp_path: Path) -> None:
    repository = publish_calls(tmp_path)
    write_handler(
        repository,
        "outer",
        1,
        OUTER.replace("inner", "calls"),
        [asks(2, {"calls": 2})],
        ("calls",),
        entry="outer:Outer",
    )
    _, line = make_key("a", ["predict"])
    file = tmp_path / "models.toml"
    file.write_text('[models.twice]\nallowed_keys = ["a"]\n')
    async with serving(repository, handlers="on", api_keys=line, models_file=file) as api:
        assert lifecycle(api).problems() == {}


async def test_trusted_hosts_are_checked_for_callers_alone(tmp_path: Path) -> None:
    repository = publish_calls(tmp_path)
    async with serving(repository, handlers="on", trusted_hosts="test") as api:
        assert (await api.client.post("/models/calls/predict", json=1)).json() == 1


async def test_calls_that_are_cancelled_or_rejected_hold_no_memory(tmp_path: Path) -> None:
    repository = publish_calls(tmp_path)
    rows = 9000  # of two numbers: more than 64 KiB of outputs
    doubles = Doubles()
    async with listening(
        repository, handlers="on", make_backend=doubles, max_items=rows, queue_limit_items=rows
    ) as server:
        service = server.service
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{server.port}", timeout=60
        ) as client:
            doubles.hold()
            path = "/models/calls/predict"
            left = asyncio.create_task(client.post(path, json=[rows, 2]))
            await _until(lambda: service.answers.held > 0)
            rejected = await client.post(path, json=[rows, 3])
            assert rejected.json()["code"] == "overloaded"
            left.cancel()
            await _until(lambda: service.answers.held == 0)
            late = {"x-torchlane-timeout-ms": "300"}
            answer = await client.post(path, json=[rows, 4], headers=late)
            assert answer.status_code in (503, 504)
            doubles.go_on()
            await _until(lambda: service.answers.held == 0)
        server.asgi.clear()


async def _until(condition: Any) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_stop_answers_requests_whose_handlers_call_handlers(tmp_path: Path) -> None:
    inner = """
    import asyncio
    import torchlane

    class Inner(torchlane.Handler):
        async def predict(self, request):
            return request.json()
    """
    slow = OUTER.replace("return {", "await asyncio.sleep(0.5)\n        return {")
    write_handler(tmp_path, "inner", 1, inner, [asks(1, 1)], entry="inner:Inner")
    write_handler(
        tmp_path,
        "outer",
        1,
        "import asyncio\n" + slow,
        [asks(1, {"inner": 1})],
        ("inner",),
        entry="outer:Outer",
    )
    async with serving(tmp_path, handlers="on", required_models="*") as api:
        asked = asyncio.create_task(api.client.post("/models/outer/predict", json=5))
        await asyncio.sleep(0.2)
        drain = asyncio.create_task(lifecycle(api).drain(5.0))
        assert (await asked).json() == {"inner": 5}
        await drain


async def test_a_handler_that_waited_for_a_model_is_replaced_or_removed(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(2, "twice")
    repository = publisher.repository
    publish_outer(repository)
    async with serving(repository, handlers="on", reload_s=0.05, required_models="twice") as api:
        await settled(api)
        assert await states(api, "outer") == {1: "failed"}
        source = OUTER.replace("inner", "twice").replace("request.json()", "[1, 2]")
        staged = write_handler(
            tmp_path / "s",
            "outer",
            2,
            source,
            [asks(1, {"twice": {"outputs": {"y": [2, 4]}}})],
            ("twice",),
            entry="outer:Outer",
        )
        staged.rename(repository / "outer/2")
        await eventually(lambda: states(api, "outer"), {1: "failed", 2: "ready"})
        for name in ("two", "three"):  # each is a change after which waiting handlers are tried
            publisher.publish(3, name)
            await eventually(lambda name=name: states(api, name), {3: "ready"})  # type: ignore[misc]


@pytest.mark.parametrize(
    ("answer", "headers"),
    [
        ([204, "text/plain", ""], {}),
        ([200, "text/plain", "é"], {"accept": "text/*"}),
        ([200, "text/plain", "a"], {"accept": "application/json"}),
        ([404, "application/json", "{}"], {}),
        ([200, "text/plain", "a" * 200_000], {"accept-encoding": "gzip"}),
        ([200, "text/plain", "a" * 200_000], {"accept-encoding": "identity;q=0"}),
    ],
    ids=str,
)
async def test_both_ways_answer_any_status_and_type(
    tmp_path: Path, answer: list[Any], headers: dict[str, str]
) -> None:
    example = Example(b'[200, "text/plain", "x"]', b"x", "application/json", "text/plain")
    write_handler(tmp_path, "answers", 1, ANSWERS, [example], entry="answers:Answers")
    async with (
        listening(tmp_path, handlers="on") as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as fast,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(server.app), base_url="http://test"
        ) as slow,
    ):
        for client in (fast, slow):
            for name in ("accept-encoding", "accept"):
                client.headers.pop(name, None)
        for path in ("/predict", "/predict?top_k=7", "/batch-predict"):
            body = {"inputs": [answer, answer]} if "batch" in path else answer
            one = await fast.post(path, json=body, headers=headers)
            other = await slow.post(path, json=body, headers=headers)
            assert one.status_code == other.status_code, path
            if one.status_code < 400:
                assert one.content == other.content, path
            for name in ("content-type", "content-length", "content-encoding"):
                assert one.headers.get(name) == other.headers.get(name), (path, name)
        assert server.asgi == []


async def test_openapi_has_the_statuses_and_types_of_the_examples(tmp_path: Path) -> None:
    examples = [
        Example(b'[200, "text/plain", "x"]', b"x", "application/json", "text/plain"),
        Example(b'[201, "application/json", "1"]', b"1", status=201),
        Example(b'[204, "text/plain", ""]', b"", "application/json", "text/plain", 204),
    ]
    write_handler(tmp_path, "answers", 1, ANSWERS, examples, entry="answers:Answers")
    async with serving(tmp_path, handlers="on") as api:
        document = (await api.client.get("/openapi.json")).json()
        answers = document["paths"]["/models/answers/predict"]["post"]["responses"]
        assert set(answers["200"]["content"]) == {"text/plain"}
        assert set(answers["201"]["content"]) == {"application/json"}
        assert "content" not in answers["204"]
        assert "503" in answers


async def test_items_of_a_batch_accept_what_their_document_holds(tmp_path: Path) -> None:
    example = Example(b'[200, "text/plain", "x"]', b"x", "application/json", "text/plain")
    write_handler(tmp_path, "answers", 1, ANSWERS, [example], entry="answers:Answers")
    body = {
        "inputs": [
            [200, "text/plain", "hi"],
            [200, "application/json", "[1]"],
            [204, "application/json", ""],
        ]
    }
    async with serving(tmp_path, handlers="on") as api:
        answer = await api.client.post(
            "/batch-predict", json=body, headers={"accept": "application/json"}
        )
        assert answer.json()["predictions"] == [
            {"media_type": "text/plain", "base64": "aGk="},
            [1],
            None,
        ]
        refused = await api.client.post(
            "/batch-predict", json=body, headers={"accept": "text/plain"}
        )
        assert refused.status_code == 406


async def test_a_large_batch_is_cut_in_a_thread(tmp_path: Path) -> None:
    source = """
    import torchlane

    class Length(torchlane.Handler):
        async def predict(self, request):
            return len(request.json())
    """
    write_handler(tmp_path, "length", 1, source, [asks([1], 1)], entry="length:Length")
    async with listening(tmp_path, handlers="on") as server:
        items = [[0] * 50_000, [], [1] * 30_000]
        body = json.dumps({"inputs": items}).encode()
        answer = await server.ask(request("/batch-predict", body))
        assert answer.json()["predictions"] == [50_000, 0, 30_000]
        many = json.dumps({"inputs": [[]] * 100_000}).encode()
        refused = await server.ask(request("/batch-predict", many))
        assert (refused.status, refused.code) == (413, "payload_too_large")
        assert server.service.bodies.held == 0


async def test_a_model_below_a_handler_of_its_name_still_answers(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(1, "m")
    source = OUTER.replace('await self.call("inner", request.json())', "1")
    write_handler(
        publisher.repository,
        "m",
        2,
        source.replace('("inner",)', "()"),
        [asks(1, {"inner": 1})],
        entry="outer:Outer",
    )
    async with serving(publisher.repository, handlers="on", versions="all") as api:
        assert (await api.client.post("/models/m/predict", json=1)).json() == {"inner": 1}
        answer = await api.client.post("/models/m/versions/1/predict", json={"input": [1, 2]})
        assert answer.json()["prediction"]["outputs"]["y"] == [1, 2]
