"""`torchlane.create_app`: the server within another program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

import torchlane
from app.access.entries import make_key
from app.settings import SettingsError
from tests.artifacts import write_artifact
from tests.e2e.forking import run


@pytest.fixture
def app(tmp_path: Path) -> FastAPI:
    write_artifact(tmp_path, "double")
    return torchlane.create_app(model_dir=tmp_path, devices="cpu", batch_wait_ms=0)


@contextlib.asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


@contextlib.asynccontextmanager
async def running(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    """A client of an application whose lifespan runs, once its model is loaded."""
    async with app.router.lifespan_context(app), client_of(app) as client:
        async with asyncio.timeout(30):
            while (await client.get("/ml/health/ready")).status_code != 200:
                await asyncio.sleep(0.01)
        yield client


async def test_mounted_with_its_lifespan(app: FastAPI) -> None:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with app.router.lifespan_context(app):
            yield

    outer = FastAPI(lifespan=lifespan)

    @outer.get("/own")
    def own() -> str:
        return "mine"

    outer.mount("/ml", app)
    async with running(outer) as client:
        answer = await client.post("/ml/predict", json={"input": [1, 2]})
        assert answer.json()["prediction"]["outputs"]["y"] == [2, 4]
        assert answer.headers["x-request-id"]
        batch = await client.post("/ml/models/double/batch-predict", json={"inputs": [[1, 2]]})
        assert batch.status_code == 200
        wrong = await client.post("/ml/v2/models/double/infer", json={})
        assert isinstance(wrong.json()["error"], str)  # as in the Open Inference Protocol
        assert (await client.get("/own")).json() == "mine"
        assert (await client.get("/ml/metrics")).status_code == 200


async def test_mounted_without_its_lifespan_it_says_what_is_missing(app: FastAPI) -> None:
    outer = FastAPI()
    outer.mount("/ml", app)
    async with client_of(outer) as client:
        ready = await client.get("/ml/health/ready")
        assert ready.status_code == 503
        (reason,) = ready.json()["reasons"]
        assert "the application's lifespan has not run" in reason
        for path in ("/ml/predict", "/ml/models/double/predict"):
            answer = await client.post(path, json={"input": [1, 2]})
            assert answer.status_code == 503
            assert "the application's lifespan has not run" in answer.json()["error"]


async def test_keys_guard_a_mounted_application(tmp_path: Path) -> None:
    _, line = make_key("ops", ["predict"], "")
    outer = FastAPI()
    outer.mount("/ml", torchlane.create_app(model_dir=tmp_path, devices="cpu", api_keys=line))
    async with client_of(outer) as client:
        for path in ("/ml/predict", "/ml/admin/reload", "/ml/admin/nothing", "/ml//admin/reload"):
            answer = await client.post(path)
            assert answer.status_code in (401, 404), path
            assert answer.status_code == 401 or path == "/ml//admin/reload"


LOGS = """
import logging, torchlane
logging.basicConfig(format="%(name)s says %(message)s", level=logging.INFO)
torchlane.create_app(model_dir="nowhere", devices="cpu")
"""


def test_logs_go_to_the_handlers_of_the_program() -> None:
    done = run("-c", LOGS)
    assert (done.returncode, done.stdout) == (0, "")
    assert "app.main says event='starting' runs='" in done.stderr


METRICS = """
import asyncio, sys, httpx, torchlane
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

async def metrics_of(app):
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        while (await client.get("/health/ready")).status_code != 200:
            await asyncio.sleep(0.01)
        await client.post("/predict", json={"input": [1, 2]})
        return (await client.get("/metrics")).text

of_server = asyncio.run(metrics_of(torchlane.create_app(model_dir=sys.argv[1], devices="cpu")))
Counter("own", "Of the program.", ["of"]).labels("program").inc(3)
together = CollectorRegistry()
MultiProcessCollector(together)
print(of_server, generate_latest().decode(), generate_latest(together).decode(), sep="---")
"""


def test_metrics_of_the_program_are_kept_apart(tmp_path: Path) -> None:
    write_artifact(tmp_path / "models", "double")
    (tmp_path / "values").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", METRICS, tmp_path / "models"],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path / "values")},
    )
    of_server, alone, together = done.stdout.split("---")
    assert "torchlane_ready 1.0" in of_server
    assert 'torchlane_requests_total{code="ok",route="/predict",status="200"} 1.0' in of_server
    assert "_created" not in of_server
    assert 'own_created{of="program"}' in alone  # prometheus_client's default
    for of_program in (alone, together):
        assert 'own_total{of="program"} 3.0' in of_program
        assert "torchlane" not in of_program


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("model_dri", "x", "model_dri is not a setting; did you mean model_dir?"),
        ("colour", "x", "colour is not a setting; docs/settings.md lists all"),
        ("port", "many", "TORCHLANE_PORT='many'"),
        ("grpc_port", 8001, "TORCHLANE_GRPC_PORT is for `torchlane serve`"),
    ],
)
def test_wrong_settings(name: str, value: object, problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        torchlane.create_app(**{name: value})
    assert str(raised.value).startswith(problem)
