"""The profile of a server under load opens in Perfetto, with its ranges where they belong."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import Iterator

import httpx
import numpy as np
import pytest
from torch import nn

from app.access.entries import make_key
from tests.artifacts import write_artifact
from tests.e2e.server import Server, running
from tests.perfetto.engine import Opened, opened

pytestmark = pytest.mark.soak
SECRET, LINE = make_key("ops", ["admin", "predict"])
KEY = {"authorization": f"Bearer {SECRET}"}
CALLERS = 4
SECONDS = 2.0


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """A trace."""
    folder = tmp_path_factory.mktemp("server")
    layers = nn.Sequential(*(nn.Linear(2, 2) for _ in range(5)))
    write_artifact(folder / "models", "layers", module=layers)
    with running(folder / "models", folder / "log", api_keys=LINE) as server:
        yield asyncio.run(_profiled(server))
        assert "ERROR" not in server.log
        assert "unhandled" not in server.log


async def _profiled(server: Server) -> bytes:
    rng, ended = np.random.default_rng(1), asyncio.Event()

    async def call(client: httpx.AsyncClient) -> None:
        while not ended.is_set():
            answer = await client.post("/predict", json={"input": rng.random(2).tolist()})
            assert answer.status_code == 200, answer.text

    async with httpx.AsyncClient(base_url=server.url, headers=KEY, timeout=60) as client:
        calls = [asyncio.create_task(call(client)) for _ in range(CALLERS)]
        profiling = asyncio.create_task(client.post(f"/admin/profile?seconds={SECONDS}"))
        while not (profiling.done() or "profiling" in server.log):
            await asyncio.sleep(0.01)
        again = await client.post("/admin/profile?seconds=0.1")
        assert (again.status_code, again.json()["code"]) == (409, "already_recording")
        answer = await profiling
        ended.set()
        await asyncio.gather(*calls)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-encoding"] == "gzip"
    return answer.content


@pytest.fixture(scope="module")
def trace(profiled: bytes) -> Iterator[Opened]:
    with opened(gzip.compress(profiled)) as there:
        yield there


def test_the_trace_opens_without_errors(trace: Opened) -> None:
    errors = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
    assert trace.rows(errors) == []


def test_batches_enclose_operators_on_replica_tracks(trace: Opened) -> None:
    placed = trace.rows(
        "select distinct thread.name from slice join thread_track on track_id = thread_track.id "
        "join thread using (utid) where slice.name glob 'batch of *, layers/1'"
    )
    assert placed
    assert all(name.startswith("replica-cpu#") for (name,) in placed)
    outside = trace.rows(
        "select count(*) from slice where category = 'cpu_op' and not exists (select 1 from "
        "ancestor_slice(slice.id) as above where above.name glob 'batch of *, layers/1')"
    )
    inside = trace.rows("select count(*) from slice where category = 'cpu_op'")
    assert outside == [(0,)]
    assert inside[0][0] > 100


def test_the_trace_names_the_process_that_made_it(trace: Opened, profiled: bytes) -> None:
    names = [name for (name,) in trace.rows("select name from process where name is not null")]
    about = json.loads(profiled)["otherData"]
    assert names == [about["server"]]
    assert about["seconds"] >= SECONDS
    assert about["ended"] == "the time is up"
