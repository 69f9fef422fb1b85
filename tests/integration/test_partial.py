"""`?partial=true`: the items of a batch that are wrong fail alone, whatever is wrong with them."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from tests.artifacts import write_artifact
from tests.forms import FORM, files
from tests.integration.harness import Api, serving
from tests.kinds import write_pictures
from tests.unit.models.pictures import grey

pytestmark = pytest.mark.asyncio(loop_scope="module")
SHAPE = "'x': expected float32 of shape [2], got shape [1]"
FAILED = {"error": "the model failed on this item", "code": "backend_failed"}
NAN = {"error": "the model returned NaN or infinity for this item", "code": "non_finite_output"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Api]:
    folder: Path = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double")
    write_pictures(folder)
    async with serving(folder, default_model="double", max_items=4000) as found:
        yield found


async def asked(api: Api, inputs: list[Any], query: str = "partial=true", **headers: str) -> Any:
    body = {"inputs": inputs}
    return await api.client.post(
        f"/models/double/batch-predict?{query}", json=body, headers=headers
    )


def row(*numbers: float) -> dict[str, Any]:
    return {"outputs": {"y": list(numbers)}}


async def test_wrong_items_have_their_errors_in_their_places(api: Api) -> None:
    before = await api.metric("torchlane_items_total", outcome="invalid_input")
    answer = await asked(api, [[1], [1, 2], [500, 0], [3, 4], [-500, 0], "x", [1, 2]])
    assert answer.status_code == 200
    found = answer.json()
    assert found["failed"] == 4
    assert [each.get("code") for each in found["predictions"]] == [
        *("invalid_input", None, "backend_failed", None, "non_finite_output", "invalid_input", None)
    ]
    assert found["predictions"][0] == {"error": SHAPE, "code": "invalid_input"}
    assert found["predictions"][1] == found["predictions"][6] == row(2, 4)
    assert found["predictions"][2:5] == [FAILED, row(6, 8), NAN]
    assert answer.headers["x-torchlane-cache"] == "hit=0, miss=4, joined=1"
    after = await api.metric("torchlane_items_total", outcome="invalid_input")
    assert after == before + 2


async def test_repeated_bodies_have_the_answer_to_their_own_query(api: Api) -> None:
    for inputs in ([[7, 8], [9, 10]], [[7, 8], [9]]):
        for _ in range(4):  # the memo answers the last ones
            with_it = await asked(api, inputs)
            without = await asked(api, inputs, "")
            assert with_it.json()["failed"] == sum(len(each) < 2 for each in inputs)
            assert without.status_code == (200 if inputs[1] == [9, 10] else 422)
            assert "failed" not in without.json()


@pytest.mark.parametrize("inputs", [[[1], [None, 1]], [[1], [500, 0]]])
async def test_all_items_fail(api: Api, inputs: list[Any]) -> None:
    answer = await asked(api, inputs)
    assert (answer.status_code, answer.json()["failed"]) == (200, 2)
    assert all(each["error"] for each in answer.json()["predictions"])


@pytest.mark.parametrize("query", ["", "partial=false"])
async def test_without_it_a_wrong_item_fails_the_batch(api: Api, query: str) -> None:
    answer = await asked(api, [[1], [1, 2]], query)
    assert answer.status_code == 422
    right = await asked(api, [[1, 2], [500, 0]], query)
    assert set(right.json()) == {"model", "version", "predictions"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 422),
        (b'{"input": [1, 2]}', 422),
        (b'{"inputs": []}', 422),
        (b'{"inputs": [%s[1]]}' % (b"[1], " * 4000), 413),
    ],
)
async def test_what_is_wrong_with_the_request_fails_it_whole(
    api: Api, body: bytes, status: int
) -> None:
    answer = await api.client.post("/batch-predict?partial=true", content=body)
    assert answer.status_code == status


async def test_files_of_a_form(api: Api) -> None:
    body = files(
        grey(np.full((2, 2), 255, np.uint8)), b"no picture", grey(np.zeros((2, 2), np.uint8))
    )
    path = "/models/pictures/batch-predict"
    answer = await api.client.post(
        f"{path}?partial=true&top_k=1", content=body, headers={"content-type": FORM}
    )
    found = answer.json()
    assert [each.get("label") for each in found["predictions"]] == ["light", None, "dark"]
    assert found["predictions"][1]["code"] == "invalid_input"
    text = base64.b64encode(grey(np.zeros((2, 2), np.uint8))).decode()
    answer = await api.client.post(f"{path}?partial=true", json={"inputs": ["bm8=", text]})
    assert [each.get("label") for each in answer.json()["predictions"]] == [None, "dark"]


@pytest.mark.parametrize("media_type", ["x-npy", "x-npz", "octet-stream"])
async def test_bytes_cannot_be_answered_in_part(api: Api, media_type: str) -> None:
    answer = await api.client.post(
        "/batch-predict?partial=true",
        content=np.zeros((2, 2), np.float32).tobytes(),
        headers={"content-type": f"application/{media_type}"},
    )
    assert answer.status_code == 400
    assert "partial is only for JSON and forms of files" in answer.json()["error"]


@pytest.mark.parametrize(
    ("query", "accept", "status", "told"),
    [
        ("partial=yes", "*/*", 422, "partial must be true or false, once, got 'yes'"),
        ("partial=true&partial=true", "*/*", 422, "once, got 'true and true'"),
        ("partial=", "*/*", 422, "partial must be true or false"),
        ("partial=true", "application/x-npy", 406, "with partial it has errors of single items"),
        ("Partial=true", "*/*", 400, "did you mean partial?"),
    ],
)
async def test_wrong_requests(api: Api, query: str, accept: str, status: int, told: str) -> None:
    answer = await asked(api, [[1, 2]], query, accept=accept)
    assert (answer.status_code, told in answer.json()["error"]) == (status, True), answer.text


async def test_invalid_items_count_for_the_rate_limit(double: Path) -> None:
    async with serving(double, rate_limit="4/minute") as limited:
        assert (await asked(limited, [[1], [2], [1, 2]])).status_code == 200
        assert (await asked(limited, [[1, 2], [3, 4]])).status_code == 429
