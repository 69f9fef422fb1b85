"""POST /admin/profile: who may, what it answers, and what ends it."""

from __future__ import annotations

import asyncio
import gzip
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.access.entries import SCOPES, make_key
from app.backends.profiler import BATCHES
from tests.artifacts import write_artifact
from tests.integration.listening import Listening, listening, until
from tests.integration.wire import WireAnswer, request

SECRET, LINE = make_key("ops", ["admin", "predict"])
OTHER_SECRET, OTHER_LINE = make_key("mobile", sorted({*SCOPES} - {"admin"}))
KEY: dict[str, Any] = {"authorization": f"Bearer {SECRET}"}


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Listening]:
    write_artifact(tmp_path, "double", 3)
    async with listening(tmp_path, api_keys=f"{LINE};{OTHER_LINE}") as opened:
        yield opened


def asked(seconds: object = 0.2, **headers: Any) -> bytes:
    query = "" if seconds is None else f"?seconds={seconds}"
    return request(f"/admin/profile{query}", b"", **{**KEY, **headers})


def events(answer: WireAnswer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = json.loads(answer.body)["traceEvents"]
    return found


def is_clean() -> bool:
    return not BATCHES.recorded


async def test_a_batch_and_its_operators_without_caller_data(server: Listening) -> None:
    profiling = asyncio.create_task(server.ask(asked(0.4)))
    await until(lambda: BATCHES.recorded)
    body = b'{"input": [3.1337, 2]}'
    while not profiling.done():
        answer = await server.ask(request("/predict?", body, x_secret="header", **KEY))
        assert answer.status == 200
    answer = await profiling
    names = [event["name"] for event in events(answer)]
    assert "batch of 1, double/3" in names
    assert "aten::mul" in names
    for secret in (b"3.1337", b"6.2674", b"header", SECRET.encode(), b"ops"):
        assert secret not in answer.body
    assert is_clean()


async def test_response_headers_describe_the_trace(server: Listening) -> None:
    answer = await server.ask(asked())
    assert answer["content-type"] == "application/json"
    assert answer["cache-control"] == "no-store"
    assert answer["vary"] == "Accept-Encoding"
    assert "content-encoding" not in answer.names
    assert answer["content-disposition"].startswith('attachment; filename="torchlane-2')
    assert answer["x-torchlane-profile"].endswith(" s; the time is up")
    about = json.loads(answer.body)["otherData"]
    assert answer["x-torchlane-profile"] == f"{about['seconds']:g} s; {about['ended']}"


async def test_an_invalid_duration_is_rejected(server: Listening) -> None:
    for seconds in ("0.09", "60.1", "-1", "nan", "inf", "", "five", "1e999", "0x1"):
        answer = await server.ask(asked(seconds))
        assert (answer.status, answer.code) == (422, "invalid_input")
        assert "seconds" in answer.json()["error"]
        assert is_clean()


async def test_the_default_duration_is_five_seconds(server: Listening) -> None:
    profiling = asyncio.create_task(server.ask(asked(None)))
    await until(lambda: BATCHES.recorded)
    refused = await server.ask(asked())
    assert 0 < refused.json()["retry_after_ms"] <= 5000
    server.service.lifecycle.begin_drain(5)
    assert (await profiling)["x-torchlane-profile"].endswith("the server is shutting down")


async def test_profiling_requires_the_admin_scope(server: Listening) -> None:
    other = {"authorization": f"Bearer {OTHER_SECRET}"}
    for headers, status in ((other, 403), ({"authorization": "Bearer wrong"}, 401)):
        for seconds in (0.2, "wrong"):  # the key is checked first
            assert (await server.ask(asked(seconds, **headers))).status == status
    assert (await server.ask(request("/admin/profile", b""))).status == 401
    assert is_clean()


async def test_only_one_profile_runs_at_a_time(server: Listening) -> None:
    wire = await server.connect()
    wire.send(asked(30))
    await until(lambda: BATCHES.recorded)
    refused = await server.ask(asked())
    assert (refused.status, refused.code) == (409, "already_recording")
    assert 0 < int(refused["retry-after"]) <= 30
    assert "profiled already" in refused.json()["error"]
    await wire.close()  # a disconnect ends it
    await until(is_clean)
    await until(lambda: not server.connections)
    answer = await server.ask(asked(accept_encoding="deflate, gzip;q=0.5"))
    assert (answer.status, answer["content-encoding"]) == (200, "gzip")
    assert b"traceEvents" in gzip.decompress(answer.body)


async def test_unusable_temporary_folder_is_the_reason(
    server: Listening, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as during:
        during.setattr(tempfile, "tempdir", str(tmp_path / "none"))
        refused = await server.ask(asked())
    assert (refused.status, refused.code) == (503, "not_recorded")
    assert "set TMPDIR" in refused.json()["error"]
    assert is_clean()
    assert (await server.ask(asked())).status == 200
