"""Handlers with real processes: calls of models, both ways through the server, versions, limits."""

from __future__ import annotations

import asyncio
import gzip
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.entries import make_key
from app.errors import ArtifactInvalid
from app.handlers.contract import HandlerPool
from app.registry.repository import Repository
from app.types import ModelId
from loadtests.traffic.target import TargetError, from_models
from tests.artifacts import change_manifest
from tests.e2e.forking import import_path
from tests.handlers import Example, asks, write_handler
from tests.integration.harness import Api, serving, settled
from tests.integration.listening import listening
from tests.integration.publishing import Publisher, eventually, lifecycle, states
from tests.keys import make_pair

SHOP = """
import torchlane

class Shop(torchlane.Handler):
    models = ("twice", "thrice")

    async def predict(self, request):
        first, *others = request.json()["rows"]
        found = await self.call("twice", first)
        rest = await self.call_many("thrice", others)
        return {"first": found["outputs"]["y"], "others": [each["outputs"]["y"] for each in rest]}
"""
ASKED = {"rows": [[1, 2], [3, 4], [5, 6]]}
TOLD = {"first": [2, 4], "others": [[9, 12], [15, 18]]}
BATCH = """
import torchlane

class Shop(torchlane.Handler):
    max_batch_size = 8

    async def predict_batch(self, requests):
        rows = [request.json() for request in requests]
        return [ValueError("negative") if row < 0 else {"of": True, "sum": row + 1}
                for row in rows]
"""
ORDER = """
import torchlane
from pydantic import BaseModel

class Order(BaseModel):
    price: float

class Shop(torchlane.Handler):
    async def predict(self, request):
        return request.json(Order).price * 2
"""
PROCESS = """
import torchlane

class Shop(torchlane.Handler):
    async def predict(self, request):
        return 1
"""
VERSION = """
import asyncio
import torchlane

class Shop(torchlane.Handler):
    async def predict(self, request):
        await asyncio.sleep(0.02)
        return {"version": %d}
"""


def publish_shop(publisher: Publisher) -> None:
    for name, version in (("twice", 2), ("thrice", 3)):
        publisher.publish(version, name)
    write_handler(publisher.repository, "shop", 1, SHOP, [asks(ASKED, TOLD)], ("twice", "thrice"))


@pytest.fixture
async def shop(tmp_path: Path) -> AsyncIterator[tuple[Api, Publisher]]:
    publisher = Publisher(tmp_path)
    publish_shop(publisher)
    async with serving(publisher.repository, handlers="on", reload_s=0.05) as api:
        yield api, publisher


async def test_calls_models_and_answers(shop: tuple[Api, Publisher]) -> None:
    api, _ = shop
    answer = await api.client.post("/models/shop/predict", json=ASKED)
    assert (answer.status_code, answer.json()) == (200, TOLD)
    assert "handler;dur=" in answer.headers["server-timing"]
    # The example had the same items: they were computed once, and found in the cache.
    assert await api.metric("torchlane_items_computed_total", model="thrice") == 2
    assert await api.metric("torchlane_items_total", model="thrice", outcome="ok") == 4
    assert await api.metric("torchlane_items_total", model="shop", outcome="ok") == 2
    one = await api.client.post("/models/shop/versions/1/predict", json=ASKED)
    assert one.json() == TOLD


async def test_is_listed_with_what_it_calls(shop: tuple[Api, Publisher]) -> None:
    api, _ = shop
    info = (await api.client.get("/models/shop")).json()
    assert (info["kind"], info["state"]) == ("handler", "ready")
    assert info["calls"] == ["twice", "thrice"]
    details = (await api.client.get("/models/shop?full=true")).json()
    assert details["manifest"]["entry"] == "shop:Shop"
    listed = (await api.client.get("/models")).json()["models"]
    assert {each["name"]: each["kind"] for each in listed} == {
        "twice": "model",
        "thrice": "model",
        "shop": "handler",
    }


async def test_load_tests_refuse_it_and_it_opens_as_no_model(shop: tuple[Api, Publisher]) -> None:
    api, publisher = shop
    listed = (await api.client.get("/models?full=true")).content
    with pytest.raises(TargetError, match="it is a handler, whose requests only its author knows"):
        from_models(listed, "http://test", "shop")
    with pytest.raises(ArtifactInvalid, match="is a handler, which has no network"):
        Repository(publisher.repository).open(ModelId("shop", 1))


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v2/models/shop"),
        ("POST", "/v2/models/shop/infer"),
        ("GET", "/v1/models/shop"),
        ("POST", "/v1/models/shop:predict"),
    ],
)
async def test_other_protocols_refuse_it(
    shop: tuple[Api, Publisher], method: str, path: str
) -> None:
    api, _ = shop
    answer = await api.client.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == 404, answer.text
    assert "is a handler, not a model: only POST /models/shop/predict" in answer.text


async def test_both_ways_give_the_same_answers(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publish_shop(publisher)
    write_handler(
        publisher.repository, "batch", 1, BATCH, [asks(1, {"of": True, "sum": 2})], max_batch_size=8
    )
    async with (
        listening(publisher.repository, handlers="on") as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=60) as fast,
        httpx.AsyncClient(
            transport=httpx.ASGITransport(server.app), base_url="http://test"
        ) as slow,
    ):
        for path, body in (
            ("/models/shop/predict", ASKED),
            ("/models/shop/predict", {"rows": "?"}),
            ("/models/shop/batch-predict", {"inputs": [ASKED, ASKED]}),
            ("/models/batch/batch-predict", {"inputs": [1, -1, 3]}),
            ("/models/batch/predict", 4),
            ("/models/batch/batch-predict", {"inputs": []}),
            ("/models/shop/versions/9/predict", ASKED),
        ):
            one, other = await fast.post(path, json=body), await slow.post(path, json=body)
            assert one.status_code == other.status_code, path
            assert _without_id(one.json()) == _without_id(other.json()), path
            assert one.headers["content-type"] == other.headers["content-type"]
        assert server.asgi == []  # all of `fast` took the fast path


def _without_id(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in answer.items() if key != "request_id"}


async def test_items_of_a_batch_have_outcomes_of_their_own(tmp_path: Path) -> None:
    write_handler(tmp_path, "batch", 1, BATCH, [asks(1, {"of": True, "sum": 2})], max_batch_size=8)
    async with serving(tmp_path, handlers="on", show_model_errors=True) as api:
        answer = await api.client.post("/batch-predict", json={"inputs": [1, -1, 3]})
        assert answer.status_code == 200, answer.text
        good, failed, last = answer.json()["predictions"]
        assert (good["sum"], last["sum"]) == (2, 4)
        assert failed["code"] == "handler_failed"
        assert failed["details"] == [{"handler_error": "ValueError: negative"}]
        all_failed = await api.client.post("/batch-predict", json={"inputs": [-1, -2]})
        assert (all_failed.status_code, all_failed.json()["code"]) == (500, "handler_failed")
        refused = await api.client.post(
            "/batch-predict", content=b"\x89PNG", headers={"content-type": "image/png"}
        )
        assert refused.status_code == 422
        assert "a batch for a handler is JSON" in refused.json()["error"]


async def test_answers_with_bytes_of_a_media_type(tmp_path: Path) -> None:
    source = """
    import torchlane

    class Shop(torchlane.Handler):
        async def predict(self, request):
            return torchlane.Response(b"\\x89PNG" + request.body, "image/png")
    """
    write_handler(tmp_path, "draw", 1, source, [Example(b"1", b"?", "text/plain", "image/png")])
    async with serving(tmp_path, handlers="on") as api:
        answer = await api.client.post("/predict?size=3", content=b"2")
        assert (answer.headers["content-type"], answer.content) == ("image/png", b"\x89PNG2")
        batch = await api.client.post("/batch-predict", json={"inputs": [7]})
        assert batch.json()["predictions"] == [{"media_type": "image/png", "base64": "iVBORzc="}]


async def test_off_lists_it_as_refused(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publish_shop(publisher)
    async with serving(publisher.repository, required_models="twice") as api:
        await settled(api)
        info = (await api.client.get("/models/shop")).json()
        assert info["versions"][0]["state"] == "failed"
        assert info["versions"][0]["problem"] == "refused: TORCHLANE_HANDLERS is off"
        answer = await api.client.post("/models/shop/predict", json=ASKED)
        assert answer.status_code == 503
        assert "refused: TORCHLANE_HANDLERS is off" in answer.json()["error"]


async def test_waits_for_its_models_and_says_when_one_goes(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(2, "twice")
    write_handler(publisher.repository, "shop", 1, SHOP, [asks(ASKED, TOLD)], ("twice", "thrice"))
    async with serving(
        publisher.repository, handlers="on", reload_s=0.05, required_models="twice"
    ) as api:
        await settled(api)
        (version,) = (await api.client.get("/models/shop")).json()["versions"]
        assert version["state"] == "failed"
        assert "it calls the model thrice, which is not served" in version["problem"]
        publisher.publish(3, "thrice")
        await eventually(lambda: states(api, "shop"), {1: "ready"})
        assert (await api.client.post("/models/shop/predict", json=ASKED)).json() == TOLD
        await lifecycle(api).unload("thrice")
        await eventually(lambda: states(api, "shop"), {1: "failed"})
        answer = await api.client.post("/models/shop/predict", json=ASKED)
        assert (answer.status_code, answer.json()["code"]) == (503, "model_not_ready")
        assert "thrice" in lifecycle(api).problems()["shop"]
        await lifecycle(api).load("thrice")
        await eventually(lambda: states(api, "shop"), {1: "ready"})


async def test_a_wrong_example_or_import_keeps_the_old_version(
    shop: tuple[Api, Publisher],
) -> None:
    api, publisher = shop
    root = publisher.repository
    write_handler(root, "shop", 2, SHOP, [asks(ASKED, {"first": 1})], ("twice", "thrice"))
    await eventually(lambda: states(api, "shop"), {1: "ready", 2: "failed"})
    write_handler(root, "shop", 3, "import nothing_such", [asks(ASKED, TOLD)])
    await eventually(lambda: states(api, "shop"), {1: "ready", 2: "failed", 3: "failed"})
    versions = (await api.client.get("/models/shop")).json()["versions"]
    problems = {each["version"]: each["problem"] for each in versions}
    assert "its example 0 got another answer than at export" in problems[2]
    assert "No module named 'nothing_such'" in problems[3]
    assert (await api.client.post("/models/shop/predict", json=ASKED)).json() == TOLD


async def test_a_new_version_loses_no_request(tmp_path: Path) -> None:
    write_handler(tmp_path, "v", 1, VERSION % 1, [asks(None, {"version": 1})])
    async with serving(tmp_path, handlers="on", reload_s=0.05) as api:
        seen: list[int] = []

        async def ask() -> None:
            while not seen or seen[-1] != 2:
                answer = await api.client.post("/predict", json=None)
                assert answer.status_code == 200, answer.text
                seen.append(answer.json()["version"])

        asking = [asyncio.create_task(ask()) for _ in range(4)]
        await asyncio.sleep(0.1)
        staged = write_handler(tmp_path / "s", "v", 2, VERSION % 2, [asks(None, {"version": 2})])
        staged.rename(tmp_path / "v" / "2")
        async with asyncio.timeout(30):
            await asyncio.gather(*asking)
        assert seen == sorted(seen)
        await eventually(lambda: states(api, "v"), {1: "unloaded", 2: "ready"})


async def test_a_circle_is_found_at_load(tmp_path: Path) -> None:
    example = [asks(None, {"version": 1})]
    write_handler(tmp_path, "b", 1, VERSION % 1, example)
    write_handler(tmp_path, "a", 1, VERSION % 1, example, ("b",))
    async with serving(tmp_path, handlers="on", reload_s=0.05, required_models="*") as api:
        write_handler(tmp_path / "s", "b", 2, VERSION % 1, example, ("a",)).rename(tmp_path / "b/2")
        await eventually(lambda: states(api, "b"), {1: "ready", 2: "failed"})
        newest = (await api.client.get("/models/b")).json()["versions"][0]
        assert "the handlers call each other in a circle: b -> a -> b" in newest["problem"]


TWICE = """
import asyncio
import torchlane

class Shop(torchlane.Handler):
    models = ("twice",)

    async def predict(self, request):
        if request.json() == "slow":
            await asyncio.sleep(30)
        found = await self.call_many("twice", [[row, 1] for row in range(request.json())])
        return len(found)
"""


def publish_twice(publisher: Publisher) -> Path:
    publisher.publish(2, "twice")
    return write_handler(publisher.repository, "s", 1, TWICE, [asks(2, 2)], ("twice",))


async def test_a_deadline_ends_the_handlers_code(tmp_path: Path) -> None:
    publish_twice(publisher := Publisher(tmp_path))
    async with serving(publisher.repository, handlers="on") as api:
        late = await api.client.post(
            "/models/s/predict", json="slow", headers={"x-torchlane-timeout-ms": "200"}
        )
        assert (late.status_code, late.json()["code"]) == (504, "handler_timeout")


async def test_signed_runs_only_signed_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="TORCHLANE_HANDLERS=signed needs TORCHLANE_TRUSTED_KEYS"):
        async with serving(tmp_path, handlers="signed"):
            pass
    pair = make_pair(tmp_path)
    folder = write_handler(tmp_path / "m", "v", 1, VERSION % 1, [asks(None, {"version": 1})])
    pair.sign(folder)
    trusted: dict[str, Any] = {"handlers": "signed", "trusted_keys": pair.public}
    async with serving(tmp_path / "m", **trusted) as api:
        assert (await api.client.post("/predict", json=1)).json() == {"version": 1}
        info = (await api.client.get("/models/v?full=true")).json()
        assert info["signed_by"] == pair.fingerprint


def test_off_imports_no_code_that_starts_processes() -> None:
    code = (
        "import sys; from app.main import create_app; from app.settings import Settings; "
        "create_app(Settings(_env_file=None, devices='cpu')); "
        "print([m for m in sys.modules if m.startswith('app.handlers.')])"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=os.environ | import_path(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "['app.handlers.contract']"


async def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    folder = write_handler(tmp_path, "v", 1, VERSION % 1, [asks(None, {"version": 1})])
    change_manifest(folder, lambda manifest: manifest["limits"].update(processes=0))
    async with serving(tmp_path, handlers="on", wait_ready=False) as api:
        await settled(api)
        (version,) = (await api.client.get("/models/v")).json()["versions"]
        assert "limits.processes" in version["problem"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('cache = true\ndevices = "cpu"', "cache, devices, which only a model can have"),
        (
            "release = { to = 1, stop_if.agreement_below = 0.9 }",
            "release.stop_if.agreement_below, which compares the answers of models",
        ),
        ('user = "no-one"', "user: this machine has no user 'no-one'"),
    ],
)
async def test_settings_that_cannot_apply_are_refused(tmp_path: Path, text: str, told: str) -> None:
    write_handler(tmp_path / "m", "v", 1, VERSION % 1, [asks(None, {"version": 1})])
    file = tmp_path / "models.toml"
    file.write_text(f"[models.v]\n{text}\n")
    async with serving(tmp_path / "m", handlers="on", models_file=file, wait_ready=False) as api:
        await settled(api)
        (version,) = (await api.client.get("/models/v")).json()["versions"]
        assert version["state"] == "failed"
        assert version["problem"].startswith(f"the models file sets {told}")


async def test_settings_of_handlers_are_refused_for_models(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    publisher.publish(2, "twice")
    file = tmp_path / "models.toml"
    file.write_text("# none\n")
    async with serving(publisher.repository, models_file=file, reload_s=0.05) as api:
        file.write_text("[models.twice]\nprocesses = 2\n")
        told = "it keeps serving with its earlier settings: the models file sets processes, which "

        async def problem() -> str:
            (version,) = (await api.client.get("/models/twice")).json()["versions"]
            return str(version["problem"])[: len(told)]

        await eventually(problem, told)


async def test_settings_apply_without_new_processes(tmp_path: Path) -> None:
    write_handler(tmp_path / "m", "v", 1, PROCESS, [asks(None, 1)])
    file = tmp_path / "models.toml"
    file.write_text("# none\n")
    _, line = make_key("a", ["predict"])
    async with serving(
        tmp_path / "m", handlers="on", models_file=file, reload_s=0, api_keys=line
    ) as api:
        before = _pool(api)
        file.write_text(
            '[models.v]\ntimeout_ms = 90\nqueue_limit_items = 7\nallowed_keys = ["a"]\n'
        )
        await lifecycle(api).reload()
        handler = lifecycle(api).loaded.handler("v")
        assert handler is not None
        assert handler.pool is before
        assert handler.settings.timeout_s == 0.09
        assert handler.settings.allowed_keys == frozenset(("a",))
        assert await api.metric("torchlane_queue_limit_items") == 7
        file.write_text("[models.v]\nprocesses = 2\n")
        await lifecycle(api).reload()
        assert _pool(api) is not before
        assert _pool(api).load().processes == 2
        assert await api.metric("torchlane_queue_limit_items") == 256


def _pool(api: Api) -> HandlerPool:
    handler = lifecycle(api).loaded.handler("v")
    assert handler is not None
    return handler.pool


async def test_a_body_is_validated_by_a_pydantic_model(tmp_path: Path) -> None:
    write_handler(tmp_path, "v", 1, ORDER, [asks({"price": 2}, 4.0)])
    async with serving(tmp_path, handlers="on") as api:
        answer = await api.client.post("/predict", json={"price": "x"})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_input")
        (detail,) = answer.json()["details"]
        assert detail["path"] == "price"


async def test_a_compressed_body_is_inflated(tmp_path: Path) -> None:
    write_handler(tmp_path, "v", 1, ORDER, [asks({"price": 2}, 4.0)])
    body = gzip.compress(b'{"price": 5}')
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    async with serving(tmp_path, handlers="on", trusted_hosts="test") as api:
        answer = await api.client.post("/predict", content=body, headers=headers)
        assert (answer.status_code, answer.json()) == (200, 10.0)
        damaged = await api.client.post("/predict", content=body[:-9], headers=headers)
        assert (damaged.status_code, damaged.json()["code"]) == (422, "invalid_input")
        other = {**headers, "host": "other.example"}
        refused = await api.client.post("/predict", content=body, headers=other)
        assert refused.json()["code"] == "untrusted_host"


async def test_openapi_has_the_calls_of_each_handler(tmp_path: Path) -> None:
    folder = write_handler(tmp_path, "order", 1, ORDER, [asks({"price": 2}, 4.0)])
    item = {"type": "object", "properties": {"price": {"type": "number"}}}
    schema = {"$defs": {"Item": item}, "type": "array", "items": {"$ref": "#/$defs/Item"}}
    change_manifest(folder, lambda manifest: manifest.update(request_schema=schema))
    async with serving(tmp_path, handlers="on") as api:
        document = (await api.client.get("/openapi.json")).json()
        call = document["paths"]["/models/order/predict"]["post"]
        assert call["requestBody"]["content"]["application/json"]["schema"] == {
            "type": "array",
            "items": {"$ref": "#/components/schemas/order.Item"},
        }
        assert document["components"]["schemas"]["order.Item"] == item
        assert call["operationId"] != document["paths"]["/predict"]["post"]["operationId"]
        assert {"200", "422", "503"} <= set(call["responses"])
        batch = document["paths"]["/models/order/batch-predict"]["post"]
        assert batch["requestBody"]["content"]["application/json"]["schema"]["required"]
        assert (await api.client.get("/models/order")).json()["request_schema"] == schema


@pytest.mark.parametrize("definitions", [["a"], "abc", [1], {"a": 1}, {"a b": {}}])
async def test_a_schema_that_is_none_breaks_no_document(
    tmp_path: Path, definitions: object
) -> None:
    folder = write_handler(tmp_path, "order", 1, ORDER, [asks({"price": 2}, 4.0)])
    change_manifest(folder, lambda manifest: manifest.update(request_schema={"$defs": definitions}))
    async with serving(tmp_path, handlers="on") as api:
        document = (await api.client.get("/openapi.json")).json()
        assert "/models/order/predict" in document["paths"]
