"""The application of Ray Serve is configured so that its parts agree; tests/ray runs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.settings import PREFIX, Settings, load_settings
from deploy.ray.request_ids import WithoutRequestId
from tests.integration.harness import serving

CONFIG = Path(__file__).parents[2] / "deploy" / "ray" / "config.yaml"


def test_drain_timeouts_and_core_counts_agree(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = yaml.safe_load(CONFIG.read_text())
    (application,) = config["applications"]
    variables: dict[str, str] = application["runtime_env"]["env_vars"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
        assert name.removeprefix(PREFIX).lower() in Settings.model_fields
    settings = load_settings(os.environ)
    deployment: dict[str, Any]
    (deployment,) = application["deployments"]
    wait_s = deployment["graceful_shutdown_wait_loop_s"]
    in_flight_s = settings.request_timeout_ms / 1000
    assert in_flight_s < config["http_options"]["request_timeout_s"]
    assert in_flight_s + settings.drain_s + wait_s < deployment["graceful_shutdown_timeout_s"]
    assert settings.cpu_threads == deployment["ray_actor_options"]["num_cpus"]
    module, name = application["import_path"].split(":")
    file = CONFIG.parents[2] / f"{module.replace('.', '/')}.py"
    assert f"\n{name} = " in file.read_text()
    assert f'serve.deployment(name="{deployment["name"]}")' in file.read_text()


class Proxy:
    """The part of Ray Serve's proxy that gives each request an id and each answer a header."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        found = MutableHeaders(scope=scope)
        request_id = found.setdefault("x-request-id", "of-the-proxy")

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).append("X-Request-ID", request_id)
            await send(message)

        await self._app(scope, receive, send_with_id)


@pytest.mark.parametrize(
    ("headers", "wanted"), [({}, "of-the-proxy"), ({"X-Request-ID": "a"}, "a")]
)
@pytest.mark.parametrize("path", ["/health/live", "/none", "/predict"])
async def test_answers_have_one_request_id(
    tmp_path: Path, path: str, headers: dict[str, str], wanted: str
) -> None:
    async with serving(tmp_path, wait_ready=False) as api:
        app = Proxy(WithoutRequestId(api.app))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.request(
                "POST" if path == "/predict" else "GET", path, headers=headers
            )
    assert answer.headers.get_list("x-request-id") == [wanted]
    if answer.status_code != 200:
        assert answer.json()["request_id"] == wanted
