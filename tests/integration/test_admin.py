"""The operator's calls."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.access.entries import make_key
from tests.integration.harness import Api, serving
from tests.integration.publishing import Publisher, answered_by, states

SECRET, LINE = make_key("ops", ["admin", "predict"])
OTHER_SECRET, OTHER_LINE = make_key("mobile", ["predict"])


@pytest.fixture
def publisher(tmp_path: Path) -> Publisher:
    made = Publisher(tmp_path)
    made.publish(1)
    return made


@pytest.fixture
async def api(publisher: Publisher) -> AsyncIterator[Api]:
    async with serving(publisher.repository, reload_s=0, api_keys=f"{LINE};{OTHER_LINE}") as api:
        api.client.headers["authorization"] = f"Bearer {SECRET}"
        yield api


async def call(api: Api, path: str, **more: Any) -> tuple[int, dict[str, Any]]:
    answer: httpx.Response = await api.client.post(f"/admin/{path}", **more)
    return answer.status_code, answer.json()


def version(number: int) -> dict[str, Any]:
    return {"model": "m", "version": number}


async def test_reload(api: Api, publisher: Publisher) -> None:
    publisher.publish(2)
    assert await answered_by(api) == 1
    assert await call(api, "reload") == (
        200,
        {"loaded": [version(2)], "retired": [version(1)], "failed": []},
    )
    assert await answered_by(api) == 2
    assert await call(api, "reload") == (200, {"loaded": [], "retired": [], "failed": []})


async def test_a_failing_version_is_reported(api: Api, publisher: Publisher) -> None:
    publisher.publish_wrong(2)
    status, body = await call(api, "reload")
    assert status == 409
    (failed,) = body["failed"]
    assert failed.items() >= version(2).items()
    assert "golden example 0" in failed["problem"]
    assert await answered_by(api) == 1


async def test_a_version_can_be_unloaded_and_reloaded(api: Api, publisher: Publisher) -> None:
    publisher.publish(2)
    await call(api, "reload")
    assert await call(api, "models/m/versions/2/unload") == (
        200,
        {"loaded": [version(1)], "retired": [version(2)], "failed": []},
    )
    assert await states(api) == {2: "unloaded", 1: "ready"}
    assert (await call(api, "models/m/versions/2/load"))[0] == 200
    assert await answered_by(api) == 2
    assert (await call(api, "models/m/unload"))[1]["retired"] == [version(2)]
    assert (await api.client.post("/predict", json={"input": [1, 2]})).status_code == 404
    assert (await call(api, "models/m/load"))[1]["loaded"] == [version(2)]


async def test_unknown_models_and_versions(api: Api) -> None:
    for path, says in {
        "none/load": "there is no model 'none' in the repository",
        "m/versions/9/load": "there is no version 9 of 'm'; there are: 1",
        "m/versions/9/unload": "there is no version 9 of 'm'",
        "m/versions/new/unload": "a version must be a whole number",
        "../load": "unknown path",
    }.items():
        answered, body = await call(api, f"models/{path}")
        assert (answered, says in body["error"]) == (404, True), body


async def test_the_scope_is_checked_before_query_parameters(api: Api) -> None:
    unknown = "unknown query parameter 'sec': this call has only seconds; did you mean seconds?"
    status, body = await call(api, "profile?sec=2")
    assert (status, body["code"], body["error"]) == (400, "unknown_parameter", unknown)
    for secret, status in (("wrong", 401), (OTHER_SECRET, 403)):
        api.client.headers["authorization"] = f"Bearer {secret}"
        for path in ("profile?sec=2", "reload", "models/m/load", "models/m/versions/1/unload"):
            assert (await call(api, path))[0] == status, path


async def test_no_change_is_accepted_during_shutdown(api: Api, publisher: Publisher) -> None:
    publisher.publish(2)
    api.app.state.lifecycle.begin_drain(5.0)
    status, body = await call(api, "reload")
    assert (status, body["code"]) == (503, "shutting_down")
