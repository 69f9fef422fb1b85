"""Models from MLflow's registry: its real server, behind a proxy that breaks answers."""

from __future__ import annotations

import base64
import http.client
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from models.stores.choose import open_store
from models.stores.errors import Missing, StoreError
from models.stores.urls import StoreUrl
from tests.artifacts import write_artifact
from tests.clients.environments import environment
from tests.conftest import Once
from tests.integration.harness import serving
from tests.integration.publishing import Publisher, answered_by, eventually
from tests.s3 import Bucket, Fault, Handler, Proxy, Seen, free_port, only, proxied, reset, status

START_LIMIT_S = 240.0
API, FILES = "/api/2.0/mlflow/", "/api/2.0/mlflow-artifacts/artifacts/"
# What `mlflow server`, which imports all of it once more, gives to its server.
GIVEN = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "_MLFLOW_SERVER_FILE_STORE": "sqlite:///db",
    "_MLFLOW_SERVER_ARTIFACT_DESTINATION": "files",
    "_MLFLOW_SERVER_ARTIFACT_ROOT": "mlflow-artifacts:/",
    "_MLFLOW_SERVER_SERVE_ARTIFACTS": "true",
}


class Registry:
    """A registered model, as MLflow's client makes it."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"
        self.name = f"digits {uuid.uuid4().hex}"
        self._post("registered-models/create", name=self.name)

    def url(self, rest: str) -> StoreUrl:
        return StoreUrl.parse(f"models:/{self.name}{rest}")

    def register(self, folder: Path) -> str:
        """Log a folder in a run, and register it; returns the number of the version."""
        run = self._post("runs/create", experiment_id="0")["run"]["info"]
        place = run["artifact_uri"].removeprefix("mlflow-artifacts:/")
        for file in folder.iterdir():
            self._ask("PUT", f"{FILES}{place}/model/{file.name}", file.read_bytes())
        return self.register_at(f"{run['artifact_uri']}/model", run["run_id"])

    def register_at(self, source: str, run: str | None = None) -> str:
        made = self._post("model-versions/create", name=self.name, source=source, run_id=run)
        return str(made["model_version"]["version"])

    def point(self, alias: str, version: str) -> None:
        """Set or move an alias."""
        self._post("registered-models/alias", name=self.name, alias=alias, version=version)

    def _post(self, path: str, **values: Any) -> Any:
        return json.loads(self._ask("POST", API + path, json.dumps(values).encode()))

    def _ask(self, method: str, path: str, body: bytes) -> bytes:
        headers = {"Content-Type": "application/json" if method == "POST" else "application/x"}
        url = self._address + path
        request = urllib.request.Request(url, data=body, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            content: bytes = answer.read()
            return content


@pytest.fixture(scope="module")
def mlflow_port(once: Once, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a real MLflow, which passes files on."""
    folder = tmp_path_factory.mktemp("mlflow")
    port = free_port()
    python = environment(once, "mlflow") / "bin" / "python"
    command = [python, "-m", "uvicorn", "--port", str(port), "mlflow.server.fastapi_app:app"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*map(str, command)],
            cwd=folder,
            env={**os.environ, **GIVEN, "PYTHONPATH": ""},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not _is_up(port):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, "MLflow does not answer"
            time.sleep(0.2)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # it starts others
        process.wait()


def _is_up(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


@pytest.fixture
def mlflow(mlflow_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The proxy, which MLflow's variables name."""
    with proxied(mlflow_port) as proxy:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"{proxy.url}/")
        yield proxy


@pytest.fixture
def registry(mlflow_port: int) -> Registry:
    return Registry(mlflow_port)


async def listed(url: StoreUrl) -> list[str]:
    return [entry.key async for entry in open_store(url).entries(10)]


async def test_a_server_follows_an_alias(registry: Registry, mlflow: Proxy, tmp_path: Path) -> None:
    publisher = Publisher(tmp_path)
    first, second = (registry.register(publisher.publish(number)) for number in (1, 2))
    registry.point("champion", first)
    url = registry.url("@champion")
    settings: dict[str, Any] = {"source_poll_s": 0.1, "reload_s": 0.1}
    async with serving(str(url), source_cache=tmp_path / "cache", **settings) as api:
        assert await answered_by(api) == 1
        registry.point("champion", second)
        await eventually(lambda: answered_by(api), 2)
        registry.point("champion", first)
        await eventually(lambda: answered_by(api), 1)
    assert len(mlflow.got("script.pt")) == 2  # nothing is read twice


async def test_a_number_means_its_version(registry: Registry, mlflow: Proxy, made: Path) -> None:
    assert registry.register(write_artifact(made, "m", 7)) == "1"
    assert await listed(registry.url("/1")) == ["m/7/manifest.json"]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return tmp_path / "made"


@pytest.mark.parametrize("has_ranges", [True, False])
async def test_a_large_file_is_one_request_also_without_its_length(
    registry: Registry, mlflow: Proxy, made: Path, has_ranges: bool
) -> None:
    """Before 3.16 the server sends files in chunks, and knows no ranges."""
    folder = write_artifact(made, "m")
    content = os.urandom(3 << 20)
    (folder / "weights").write_bytes(content)
    registry.register(folder)
    if not has_ranges:
        mlflow.fault = only("weights", in_chunks(content))
    store = open_store(registry.url("/1"))
    assert [entry.key async for entry in store.entries(10)] == ["m/1/manifest.json"]
    third = len(content) // 3
    parts = [(0, third), (third, 2 * third), (2 * third, len(content))]
    read = [await store.read_range("m/1/weights", *part, len(content)) for part in parts]
    assert b"".join(piece for pieces in read for piece in pieces) == content
    assert len(mlflow.got("weights")) == 1
    again = await store.read_range("m/1/weights", third, 2 * third, len(content))
    await store.stop_reading()
    assert b"".join(again) == content[third : 2 * third]


def in_chunks(content: bytes) -> Fault:
    def fault(handler: Handler, seen: Seen) -> bool:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for piece in (content[at : at + 100_000] for at in range(0, len(content), 100_000)):
            handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        handler.wfile.write(b"0\r\n\r\n")
        return True

    return fault


async def test_files_in_a_bucket_are_read_from_there(
    registry: Registry, mlflow: Proxy, s3: Proxy, bucket: Bucket, made: Path
) -> None:
    folder = write_artifact(made, "m", 3)
    bucket.upload(folder)
    registry.register_at(f"s3://{bucket.name}/models/m/3")
    store = open_store(registry.url("/1"))
    assert [entry.key async for entry in store.entries(10)] == ["m/3/manifest.json"]
    weights = (folder / "script.pt").read_bytes()
    read = await store.read_range("m/3/script.pt", 0, len(weights), len(weights))
    assert b"".join(read) == weights
    assert mlflow.got("script.pt") == []


@pytest.mark.parametrize(
    ("rest", "says"),
    [
        ("@nobody", "has no alias nobody; it has: champion"),
        ("/9", "has no version 9 of the model digits"),
    ],
)
async def test_an_unknown_version_is_named(
    registry: Registry, mlflow: Proxy, made: Path, rest: str, says: str
) -> None:
    registry.point("champion", registry.register(write_artifact(made, "m")))
    with pytest.raises(StoreError, match=says):
        await listed(registry.url(rest))


async def test_an_unknown_model_is_named(mlflow: Proxy) -> None:
    with pytest.raises(StoreError, match="has no registered model nothing"):
        await listed(StoreUrl.parse("models:/nothing@champion"))


def written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_text(content)
    return folder


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"MLmodel": "flavors: {}", "model.pkl": ""}, "is a model in MLflow's own format"),
        ({"weights": ""}, "is no artifact, without a manifest.json: register the folder"),
        ({"manifest.json": "{}"}, "its manifest.json is not Torchlane's"),
    ],
)
async def test_what_is_no_artifact_is_refused(
    registry: Registry, mlflow: Proxy, made: Path, files: dict[str, str], says: str
) -> None:
    registry.register(written(made, files))
    with pytest.raises(StoreError, match=says):
        await listed(registry.url("/1"))


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("dbfs:/models/digits", "its files are in dbfs:/models/digits, which cannot be read"),
        ("wasbs://c@mine.blob.core.windows.net/m", "set AZURE_STORAGE_ACCOUNT_NAME=mine"),
    ],
)
async def test_files_that_cannot_be_reached_are_named(
    registry: Registry, mlflow: Proxy, source: str, says: str
) -> None:
    registry.register_at(source)
    with pytest.raises(StoreError, match=says):
        await listed(registry.url("/1"))


async def test_a_file_that_is_not_there_is_missing(
    registry: Registry, mlflow: Proxy, made: Path
) -> None:
    registry.register(write_artifact(made, "m"))
    store = open_store(registry.url("/1"))
    assert [entry.key async for entry in store.entries(10)] == ["m/1/manifest.json"]
    with pytest.raises(Missing, match="model/nothing does not exist"):
        await store.read("m/1/nothing", 10)
    with pytest.raises(Missing, match="has no other/1/nothing"):
        await store.read("other/1/nothing", 10)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (status(401), "answers 401; it takes MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASS"),
        (status(403), "answers 403; it takes MLFLOW_TRACKING_USERNAME"),
        (status(503), "answers 503$"),
        (status(200, b"<html>"), "does not answer as MLflow does"),
        (reset, "the connection broke"),
    ],
)
async def test_a_server_that_fails_is_said(mlflow: Proxy, fault: Fault, says: str) -> None:
    mlflow.fault = fault
    with pytest.raises(StoreError, match=says):
        await listed(StoreUrl.parse("models:/digits@champion"))


BASIC = "Basic " + base64.b64encode(b"me:secret").decode()


@pytest.mark.parametrize(
    ("variables", "login"),
    [
        ({}, None),
        ({"TOKEN": "t"}, "Bearer t"),
        ({"USERNAME": "me", "PASSWORD": "secret", "TOKEN": "t"}, BASIC),
    ],
)
async def test_logins_are_those_of_mlflow(
    mlflow: Proxy, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], login: str | None
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
    got = []

    def keep(handler: Handler, _: Seen) -> bool:
        got.append(handler.headers["Authorization"])
        return False

    mlflow.fault = keep
    with pytest.raises(StoreError):
        await listed(StoreUrl.parse("models:/nothing@champion"))
    assert got == [login]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("TRACKING_URI", "", "needs the address of the MLflow server, such as MLFLOW_TRACKING_URI"),
        ("TRACKING_URI", "sqlite:///mlflow.db", "needs the address of the MLflow server"),
        ("TRACKING_URI", "http://me:secret@host", "needs the address of the MLflow server"),
        ("TRACKING_URI", "http://host/?token=secret", "needs the address of the MLflow server"),
        ("TRACKING_URI", "http://host:port", "needs the address of the MLflow server"),
        ("TRACKING_INSECURE_TLS", "true", "MLFLOW_TRACKING_INSECURE_TLS is not supported"),
        ("WORKSPACE", "ours", "MLFLOW_WORKSPACE is not supported; unset it"),
        ("TRACKING_TOKEN", "secret\nX: y", "or a login in its variables is malformed"),
    ],
)
async def test_variables_that_cannot_be_used_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, says: str
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        monkeypatch.setenv(f"MLFLOW_{name}", value)
        with pytest.raises(StoreError, match=says) as caught:
            await listed(StoreUrl.parse("models:/digits/1"))
    assert "secret" not in str(caught.value)


async def test_certificates_that_cannot_be_read_are_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_TRACKING_SERVER_CERT_PATH", str(tmp_path / "nothing"))
    with pytest.raises(StoreError, match="SERVER_CERT_PATH is no file of certificates"):
        await listed(StoreUrl.parse("models:/digits/1"))


async def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.stores.tracking.REQUEST_S", 0.2)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(StoreError, match="it took too long"):
            await listed(StoreUrl.parse("models:/digits/1"))
