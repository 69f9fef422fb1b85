"""The whole application in this process: real codecs, engine and TorchScript; no socket."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from app.backends.fake import FakeBackend
from app.main import create_app
from app.serving.installer import BackendFactory
from app.settings import Settings
from tests.integration.wire import READY_LIMIT_S, total_of

# httpx looks for this package, which is not installed, on the disk for each request to an ASGI
# application: a millisecond of two.
sys.modules.setdefault("sniffio", None)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Api:
    """A client, and the application that it talks to."""

    client: httpx.AsyncClient
    app: FastAPI

    async def metric(self, name: str, **labels: str) -> float:
        """The sum over all series of a metric that carry these labels."""
        return total_of((await self.client.get("/metrics")).text, name, labels)


@contextlib.asynccontextmanager
async def serving(
    model_dir: Path | str,
    *,
    wait_ready: bool = True,
    make_backend: BackendFactory | None = None,
    **settings: Any,
) -> AsyncIterator[Api]:
    """The application over a repository; by default every model is ready when it begins."""
    # Else each start would measure the machine, or know what other tests have measured.
    settings.setdefault("devices", "cpu")
    settings.setdefault("source_cache", Path(f"{model_dir}-cache"))
    made = Settings(model_dir=model_dir, _env_file=None, **settings)
    app = create_app(made, make_backend)
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://test") as client,
    ):
        async with asyncio.timeout(READY_LIMIT_S):
            while wait_ready and (await client.get("/health/ready")).status_code != 200:
                await asyncio.sleep(0.01)
        yield Api(client, app)


def held(go_on: threading.Event) -> BackendFactory:
    """Makes backends that double their input; each waits for `go_on` before it is made."""

    def make(*_: object) -> FakeBackend:
        go_on.wait(20)
        return FakeBackend(lambda inputs: {"y": inputs["x"] * 2})

    return make


async def settled(api: Api) -> None:
    """Wait until loading has ended, successfully or not."""
    async with asyncio.timeout(READY_LIMIT_S):
        while True:
            models = (await api.client.get("/models")).json()["models"]
            if models and all(model["state"] != "loading" for model in models):
                return
            await asyncio.sleep(0.01)
