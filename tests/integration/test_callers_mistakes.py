"""A caller's mistake is a 422 with the numbers; an item that fails in the model is in the log."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from structlog.testing import capture_logs
from torch import nn

from models.tensors import Dimension, TensorSpec
from tests.artifacts import write_artifact
from tests.integration.listening import Listening, listening
from tests.integration.wire import request

SEQ = Dimension(name="seq", least=1, most=8)
IDS = TensorSpec(
    name="ids", dtype="int64", shape=(-1, -1), dimensions=(SEQ,), minimum=0, maximum=49
)
MASK = TensorSpec(name="mask", dtype="bool", shape=(-1, -1), dimensions=(SEQ,))
ROW = TensorSpec(name="row", dtype="int32", shape=(-1, 2), minimum=0, maximum=49)
OUT = TensorSpec(name="y", dtype="float32", shape=(-1, 2))


class Words(nn.Module):
    """ids [n, s] of a table of 50, mask [n, s] -> [n, 2]; positions end at 8."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(50, 2), nn.Embedding(8, 2)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        at = self.positions(torch.arange(ids.shape[1], device=ids.device))
        made: torch.Tensor = ((self.table(ids) + at) * mask.unsqueeze(2)).sum(1)
        return made


class Row(nn.Module):
    """row [n, 2] of a table of 50 -> [n, 2]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 2)

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.table(row).sum(1)
        return made


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Listening]:
    golden = [{"ids": np.array([1, 2]), "mask": np.array([True, False])}]
    write_artifact(
        tmp_path, "words", module=Words(), inputs=(IDS, MASK), outputs=(OUT,), golden=golden
    )
    rows = [{"row": np.array([1, 2], np.int32)}]
    write_artifact(tmp_path, "row", module=Row(), inputs=(ROW,), outputs=(OUT,), golden=rows)
    async with listening(tmp_path, default_model="words", cache_bytes=0) as made:
        yield made


def npy(value: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(value))
    return buffer.getvalue()


def item(ids: list[int], mask: list[Any]) -> dict[str, Any]:
    return {"ids": ids, "mask": mask}


@pytest.mark.parametrize(
    ("wrong", "told", "numbers"),
    [
        (
            item([1, 300], [1, 1]),
            "'ids': expected whole numbers in 0..49, got 300 at [1]",
            (300, 49),
        ),
        (item([-1], [True]), "'ids': expected whole numbers in 0..49, got -1 at [0]", (-1, 0)),
        (
            item([1, 2], [1, 1, 0]),
            "'mask': axis 0 has size 3, but axis 0 of 'ids' has size",
            (3, 2),
        ),
        (
            item([1] * 9, [1] * 9),
            "'ids': expected int64 of shape [seq 1..8], got shape [9]",
            (9, 8),
        ),
        (item([], []), "'ids': expected int64 of shape [seq 1..8], got shape [0]", (0, 1)),
        (
            item([1], [2]),
            "'mask': expected bool of shape [seq 1..8], got values that are not",
            None,
        ),
    ],
)
async def test_inputs_outside_the_manifest_are_422(
    server: Listening, wrong: dict[str, Any], told: str, numbers: tuple[int, int] | None
) -> None:
    one = await server.ask(request(body=json.dumps({"input": wrong}).encode()))
    assert (one.status, one.code) == (422, "invalid_input")
    assert one.json()["error"].startswith(told)
    body = json.dumps({"inputs": [item([1], [0]), wrong]}).encode()
    many = await server.ask(request(path="/batch-predict", body=body))
    assert (many.status, many.code) == (422, "invalid_input")
    (detail,) = many.json()["details"]
    assert detail["index"] == 1
    if numbers is not None:
        assert (detail["got"], detail["limit"]) == numbers
    assert await server.metric("torchlane_items_computed_total") == 0


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b'{"inputs": [[1, 2], [3, 50]]}'),
        ("application/octet-stream", np.array([1, 2, 3, 50], "<i4").tobytes()),
        ("application/x-npy", npy([[1, 2], [3, 50]])),
    ],
)
async def test_errors_name_the_item_in_every_format(
    server: Listening, content_type: str, body: bytes
) -> None:
    path = "/models/row/batch-predict"
    answer = await server.ask(request(path=path, content_type=content_type, body=body))
    assert answer.status == 422
    (detail,) = answer.json()["details"]
    assert (detail["index"], detail["input"]) == (1, "row")
    assert (detail["got"], detail["limit"]) == (50, 49)


async def test_bools_may_be_0_and_1(server: Listening) -> None:
    answers = [
        await server.ask(request(body=json.dumps({"input": item([4, 5], mask)}).encode()))
        for mask in ([1, 0], [True, False], [1.0, False])
    ]
    assert [each.status for each in answers] == [200] * 3
    assert len({each.body for each in answers}) == 1


SECRET = "too large: /a/secret/path"  # what the model says


@pytest.mark.parametrize("shows", [False, True])
async def test_model_failures_are_logged_with_request_ids(tmp_path: Path, shows: bool) -> None:
    write_artifact(tmp_path, "double")
    async with listening(tmp_path, show_model_errors=shows) as server:
        with capture_logs() as logs:
            one = await server.ask(request(body=b'{"input": [500, 0]}', x_request_id="one"))
            body = b'{"inputs": [[1, 2], [600, 0]]}'
            many = await server.ask(request("/batch-predict", body, x_request_id="many"))
    failed = [each for each in logs if each["event"] == "model_failed"]
    assert [each["request_ids"] for each in failed] == [["one"], ["many"]]
    assert all(SECRET in each["first"] for each in failed)
    assert (one.status, one.code, many.status) == (500, "backend_failed", 200)
    place = many.json()["predictions"][1]
    assert (place["error"], place["code"]) == ("the model failed on this item", "backend_failed")
    for shown in (one.json()["details"], place.get("details", [])):
        assert [SECRET in each["model_error"] for each in shown] == [True] * shows
    assert (SECRET.encode() in one.body + many.body) is shows
