"""Weights of versions: every way in gives a user the same version, also while weights change."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from app.access.entries import make_key
from app.api.oip.grpc.protos import inference_pb2 as pb
from app.backends.fake import FakeBackend
from app.errors import VariantUnusable
from tests.artifacts import write_artifact
from tests.handlers import asks, write_handler
from tests.integration import grpc_calls
from tests.integration.harness import Api, serving
from tests.integration.listening import Listening, listening
from tests.integration.publishing import Publisher, answered_by, eventually, lifecycle
from tests.integration.wire import JSON, WireAnswer, request
from tests.texts import write_text

pytestmark = pytest.mark.asyncio(loop_scope="module")
BOTH = "weights = { 2 = 50, 3 = 50 }\n"
USERS = [f"user-{number}" for number in range(12)]
ROW = np.array([1, 2], "<f4").tobytes()
OIP = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}
# Path, body and media type of requests to `m` and `text`.
WAYS: dict[str, tuple[str, object, str]] = {
    "native": ("/predict", {"input": [1, 2]}, JSON),
    "native by name": ("/models/m/predict", {"input": [1, 2]}, JSON),
    "bytes": ("/models/m/predict", ROW, "application/octet-stream"),
    "batch": ("/batch-predict", {"inputs": [[1, 2], [3, 4]]}, JSON),
    "oip": ("/v2/models/m/infer", OIP, JSON),
    "torchserve": ("/predictions/m", [1, 2], JSON),
    "invocations": ("/invocations", {"instances": [[1, 2]]}, JSON),
    "kserve": ("/v1/models/m:predict", {"inputs": [[1, 2]]}, JSON),
    "openai": ("/v1/embeddings", {"model": "text", "input": "a cat"}, JSON),
    "tei": ("/embed", {"model": "text", "inputs": "a cat"}, JSON),
}
CALLS = """
import torchlane

class Calls(torchlane.Handler):
    models = ("m",)

    async def predict(self, request):
        if request.json() is None:  # its example
            return None
        answers = [(row, await self.call("m", [row, 0])) for row in (1, 2, 4)]
        return [answer["outputs"]["y"][0] / row for row, answer in answers]
"""
HANDLER = """
import torchlane

class H(torchlane.Handler):
    async def predict(self, request):
        ANSWER
"""


class Weighted:
    """Versions 2 and 3 of `m`, and the models file, which tests change.

    Args:
        root: of everything.
    """

    def __init__(self, root: Path) -> None:
        self.publisher = Publisher(root)
        for version in (2, 3):
            self.publisher.publish(version)
        self.file = root / "models.toml"
        self.write(BOTH)

    @property
    def settings(self) -> dict[str, Any]:
        return {"model_dir": self.publisher.repository, "models_file": self.file} | {
            "versions": "all",
            "default_model": "m",
        }

    def write(self, text: str) -> None:
        self.file.write_text(f"[models.m]\n{text}")

    async def change(self, api: Api, text: str) -> None:
        """Change the file, and have the server look."""
        self.write(text)
        await lifecycle(api).reload()


@pytest.fixture
def weighted(tmp_path: Path) -> Weighted:
    return Weighted(tmp_path)


async def shown(api: Api) -> dict[str, Any]:
    found: dict[str, Any] = (await api.client.get("/models/m")).json()
    return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[grpc_calls.Server]:
    made = Weighted(tmp_path_factory.mktemp("ways"))
    repository = made.publisher.repository
    for version in (2, 3):
        write_text(repository, version=version)
    sticky = f"{BOTH}sticky = 'header:X-User'\n"
    made.file.write_text(f"[models.m]\n{sticky}[models.text]\n{sticky}")
    settings = made.settings
    async with grpc_calls.serving(settings.pop("model_dir"), **settings) as server:
        yield server


@pytest.mark.parametrize("way", WAYS)
async def test_a_user_has_one_version(server: grpc_calls.Server, way: str) -> None:
    path, body, _ = WAYS[way]
    name = "text" if "text" in json.dumps(body, default=str) else "m"
    http = server.listening
    for user, version in (await versions_of(http, name)).items():
        answer = await http.ask(sent(way, x_user=user))
        assert answer.status == 200, (path, answer.body)
        assert int(answer["x-torchlane-version"]) == version
        assert told(answer) in (version, None)


async def test_grpc(server: grpc_calls.Server) -> None:
    for user, version in (await versions_of(server.listening, "m")).items():
        call = server.call(
            f"{grpc_calls.INFERENCE}/ModelInfer",
            grpc_calls.row(model="m").SerializeToString(),
            metadata=(("x-user", user), ("accept", "image/png")),
        )
        answer = pb.ModelInferResponse.FromString(await call)
        assert answer.model_version == str(version)
        assert grpc_calls.numbers(answer) == [version, 2 * version]
        assert dict(await call.trailing_metadata())["x-torchlane-version"] == str(version)


async def test_a_request_that_names_a_version_gets_it(server: grpc_calls.Server) -> None:
    for version in (2, 3):
        for path in (
            f"/models/m/versions/{version}/predict",
            f"/predictions/m/{version}",
            f"/v2/models/m/versions/{version}/infer",
        ):
            body = OIP if "infer" in path else [1, 2] if "predictions" in path else None
            data = json.dumps(body or {"input": [1, 2]}).encode()
            for user in USERS[:4]:
                answer = await server.listening.ask(request(path, data, x_user=user))
                assert b"%d.0" % (2 * version) in answer.body
                assert "x-torchlane-version" not in answer.names


async def test_an_error_names_the_version_that_was_chosen(server: grpc_calls.Server) -> None:
    asgi = httpx.AsyncClient(transport=httpx.ASGITransport(server.listening.app))
    for user, version in (await versions_of(server.listening, "m")).items():
        body = b'{"input": "no"}'
        fast = await server.listening.ask(request("/predict", body, x_user=user))
        assert (fast.status, fast["x-torchlane-version"]) == (422, str(version))
        slow = await asgi.post("http://test/predict", content=body, headers={"x-user": user})
        assert (slow.status_code, slow.headers["x-torchlane-version"]) == (422, str(version))
    named = await server.listening.ask(request("/models/m/versions/2/predict", b'{"input": 1}'))
    unknown = await server.listening.ask(request("/models/absent/predict", b'{"input": 1}'))
    assert (named.status, unknown.status) == (422, 404)
    assert "x-torchlane-version" not in {*named.names, *unknown.names}


async def test_a_repeated_head_is_not_parsed_again(server: grpc_calls.Server) -> None:
    versions = await versions_of(server.listening, "m")
    wire = await server.listening.connect()
    for user in USERS[:4]:
        for number in range(3):
            body = b'{"input": [%d, 2]}' % 10**number
            answer = await wire.ask(request("/predict", body, x_user=user))
            assert answer.json()["version"] == versions[user]
    assert server.listening.asgi == []


def sent(way: str, **headers: Any) -> bytes:
    path, body, media_type = WAYS[way]
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return request(path, data, content_type=media_type, **headers)


def told(answer: WireAnswer) -> int | None:
    """The version that the numbers of an answer, or its fields, tell; None: neither does."""
    body = answer.json()
    if isinstance(body, dict) and "version" in body:
        return int(body["version"])
    if isinstance(body, dict) and "model_version" in body:
        return int(body["model_version"])
    if isinstance(body, dict) and "model" in body:
        return int(str(body["model"]).partition("/")[2])
    numbers = body
    while isinstance(numbers, dict | list):
        numbers = numbers[0] if isinstance(numbers, list) else next(iter(numbers.values()))
    return int(numbers) if numbers in (2, 3) else None


async def versions_of(http: Listening, name: str) -> dict[str, int]:
    """The version of each user, of which both occur."""
    versions = {}
    for user in USERS:
        body = b'{"input": [1, 2]}' if name == "m" else b'{"input": "a cat"}'
        answer = await http.ask(request(f"/models/{name}/predict", body, x_user=user))
        versions[user] = int(answer.json()["version"])
    assert set(versions.values()) == {2, 3}
    return versions


async def test_bodies_decide_by_default_and_without_a_header(weighted: Weighted) -> None:
    for sticky in ("", "sticky = 'header:X-User'\n", "sticky = 'key'\n"):
        weighted.write(BOTH + sticky)
        async with serving(**weighted.settings) as api:
            versions = [await answered_by(api, x=float(number)) for number in range(40)]
            assert set(versions) == {2, 3}
            again = [await answered_by(api, x=float(number)) for number in range(40)]
            assert again == versions


async def test_a_key_has_one_version(weighted: Weighted) -> None:
    weighted.write(f"{BOTH}sticky = 'key'\n")
    keys = {name: make_key(name, ["predict"]) for name in USERS}
    lines = ";".join(line for _, line in keys.values())
    async with serving(**weighted.settings, api_keys=lines) as api:
        versions: dict[str, set[int]] = {}
        for name, (secret, _) in keys.items():
            for number in range(3):
                answer = await api.client.post(
                    "/predict", json={"input": [number, 0]}, headers={"x-api-key": secret}
                )
                versions.setdefault(name, set()).add(answer.json()["version"])
        assert sorted(map(len, versions.values())) == [1] * len(USERS)
        assert set.union(*versions.values()) == {2, 3}


@pytest.mark.parametrize("sticky", ["", "sticky = 'header:X-User'\n"])
async def test_calls_of_a_handler_choose_as_its_caller(weighted: Weighted, sticky: str) -> None:
    weighted.write(BOTH + sticky)
    repository = weighted.publisher.repository
    write_handler(repository, "calls", 1, CALLS, [asks(None, None)], ("m",), entry="calls:Calls")
    async with serving(**weighted.settings, handlers="on") as api:

        async def ask(call: str, body: object, user: str) -> Any:
            path, headers = f"/models/calls/{call}", {"x-user": user}
            answer = await api.client.post(path, json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()

        versions = {}
        for user in USERS:
            called = await ask("predict", 1 if sticky else user, user)
            (versions[user],) = set(called)  # of all three calls
        assert set(versions.values()) == {2, 3}
        for user in USERS:
            many = (await ask("batch-predict", {"inputs": [1, 2, user]}, user))["predictions"]
            (version,) = {each for called in many for each in called}  # of all items
            assert not sticky or version == versions[user]


async def test_versions_of_a_handler_have_weights(tmp_path: Path) -> None:
    for version, code in ((2, "return 2"), (3, "yield 3")):
        source = HANDLER.replace("ANSWER", code)
        examples = [asks(1, 2 if version == 2 else [3])]
        write_handler(
            *(tmp_path / "models", "h", version, source, examples),
            entry="h:H",
            streams=version == 3,
        )
    (tmp_path / "file").write_text(
        "[models.h]\nweights = { 2 = 60, 3 = 40 }\nsticky = 'header:X-User'\n"
    )
    settings: dict[str, Any] = {"models_file": tmp_path / "file", "versions": "all"}
    async with listening(tmp_path / "models", handlers="on", **settings) as server:
        versions = set()
        for user in USERS:
            many = request("/models/h/batch-predict", b'{"inputs": [1, 2, 3]}', x_user=user)
            answer = await server.ask(many)
            version = int(answer["x-torchlane-version"])
            assert answer.json()["version"] == version
            assert answer.json()["predictions"] == [2 if version == 2 else [3]] * 3
            versions.add(version)
            wire = await server.connect()
            wire.send(request("/models/h/predict", b"1", connection="close", x_user=user))
            one = await wire.rest()
            assert b"x-torchlane-version: %d\r\n" % version in one
            assert (b"data: 3\n\n" in one) == (version == 3)
        assert versions == {2, 3}


async def test_versions_of_a_handler_with_tensors_have_weights(tmp_path: Path) -> None:
    tensors: Any = {"inputs": {"x": "float32[-1,1]"}, "outputs": {"y": "float32[-1,1]"}}
    for version in (2, 3):
        source = (
            "import torchlane\n\n\nclass H(torchlane.Handler):\n"
            f"    inputs = {tensors['inputs']}\n    outputs = {tensors['outputs']}\n\n"
            "    def predict(self, request):\n"
            f"        return {{'y': request.tensors['x'] * {version}}}\n"
        )
        example = asks({"x": [[1]]}, {"y": [[version]]})
        write_handler(tmp_path / "models", "h", version, source, [example], entry="h:H", **tensors)
    (tmp_path / "file").write_text(
        "[models.h]\nweights = { 2 = 60, 3 = 40 }\nsticky = 'header:X-User'\n"
    )
    settings: dict[str, Any] = {"models_file": tmp_path / "file", "versions": "all"}
    infer = b'{"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [10]}]}'
    async with listening(tmp_path / "models", handlers="on", **settings) as server:
        versions = set()
        for user in USERS:
            answer = await server.ask(request("/v2/models/h/infer", infer, x_user=user))
            version = int(answer["x-torchlane-version"])
            assert answer.json()["outputs"][0]["data"] == [10 * version]
            assert answer.json()["model_version"] == str(version)
            versions.add(version)
        assert versions == {2, 3}


async def test_weights_change_while_the_server_answers(weighted: Weighted) -> None:
    weighted.write("weights = { 2 = 100 }\n")
    async with serving(**weighted.settings, reload_s=0.05) as api:
        assert {await answered_by(api, x=float(number)) for number in range(20)} == {2}
        before = [2] * 40
        for percent in (10, 50, 90):
            weighted.write(f"weights = {{ 2 = {100 - percent}, 3 = {percent} }}\n")
            await eventually(lambda: share_of_3(api), percent / 100)
            now = [await answered_by(api, x=float(number)) for number in range(40)]
            assert all(old <= new for old, new in zip(before, now, strict=True))  # none goes back
            before = now
        weighted.write("weights = { 2 = -1 }\n")
        await asyncio.sleep(0.2)
        assert await share_of_3(api) == 0.9
        weighted.write("")
        await eventually(lambda: weights_of(api), None)
        assert {await answered_by(api, x=float(number)) for number in range(20)} == {3}


async def share_of_3(api: Api) -> float | None:
    weights = await weights_of(api)
    return next((each["share"] for each in weights["versions"] if each["version"] == 3), None)


async def weights_of(api: Api) -> Any:
    return (await shown(api))["weights"]


async def test_remembered_answers_are_those_of_the_version(weighted: Weighted) -> None:
    async with serving(**weighted.settings, reload_s=0) as api:
        for turn in range(2):
            for version in (2, 3):
                await weighted.change(api, f"weights = {{ {version} = 1 }}\n")
                hits = []
                for _ in range(4):  # computed, then cached, then remembered
                    answer = await api.client.post("/predict", json={"input": [1, 0]})
                    assert answer.json()["version"] == version
                    assert answer.json()["prediction"]["outputs"]["y"][0] == version
                    assert answer.headers["x-torchlane-version"] == str(version)
                    hits.append(answer.headers["x-torchlane-cache"])
                assert hits == ["hit" if turn else "miss", "hit", "hit", "hit"]


async def test_weights_of_versions_that_are_not_served_are_reported(weighted: Weighted) -> None:
    weighted.write("weights = { 2 = 60, 3 = 30, 9 = 10 }\n")
    with capture_logs() as logs:
        async with serving(**weighted.settings, reload_s=0) as api:
            found = await shown(api)
            problem = (
                "not served, but with a weight: m 9; the other versions get their share; "
                "TORCHLANE_VERSIONS sets which versions are served"
            )
            assert found["version"] == 2  # has the largest weight
            assert found["weights"] == {
                "sticky": "body",
                "versions": [
                    {"version": 2, "weight": 60.0, "share": pytest.approx(2 / 3)},
                    {"version": 3, "weight": 30.0, "share": pytest.approx(1 / 3)},
                    {"version": 9, "weight": 10.0, "share": 0.0},
                ],
                "problem": problem,
            }
            for _ in range(2):
                await lifecycle(api).reload()
            weighted.publisher.publish(9)
            await lifecycle(api).reload()
            assert (await weights_of(api))["problem"] is None
            await weighted.change(api, "weights = { 7 = 1 }\n")
            assert (await shown(api))["version"] == 9
            assert await answered_by(api) == 9
    warnings = Counter(log["event"] for log in logs)
    assert warnings["weights_without_version"] == 2  # once each
    assert warnings["weights_apply"] == 1
    assert next(log for log in logs if log["event"] == "weights_without_version") == {
        "event": "weights_without_version",
        "log_level": "warning",
        "model": "m",
        "problem": problem,
    }


async def test_a_version_without_weight_gets_only_requests_that_name_it(weighted: Weighted) -> None:
    weighted.write("weights = { 2 = 1 }\n")
    async with serving(**weighted.settings) as api:
        assert {await answered_by(api, x=float(number)) for number in range(10)} == {2}
        assert await answered_by(api, "/models/m/versions/3/predict") == 3


async def test_a_version_that_cannot_run_here_leaves_its_share_to_a_newer_one(
    tmp_path: Path,
) -> None:
    for version in (2, 3):
        write_artifact(tmp_path / "models", "m", version)
    file = tmp_path / "file"
    file.write_text("[models.m]\nrequired = false\nweights = { 2 = 95, 3 = 5 }\n")

    def make(artifact: Any, *_: object) -> FakeBackend:
        if artifact.id.version == 2:
            raise VariantUnusable("it needs another processor")
        return FakeBackend(lambda inputs: {"y": inputs["x"] * 2})

    settings: dict[str, Any] = {"models_file": file, "versions": "latest:2"}
    async with serving(tmp_path / "models", make_backend=make, **settings) as api:
        answer = await api.client.post("/predict", json={"input": [1, 2]})
        assert (answer.status_code, answer.json()["version"]) == (200, 3)
