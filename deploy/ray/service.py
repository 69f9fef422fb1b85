"""The service as a Ray Serve application: `serve run deploy/ray/config.yaml`.

Each replica is a complete server without a socket: Serve's proxies call the ASGI application, and
the replica's TORCHLANE_* variables are the settings.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from ray import serve

from app.logs import configure_logs
from app.main import create_app
from app.serving.lifecycle import Lifecycle
from app.settings import load_settings
from deploy.ray.request_ids import WithoutRequestId

START_S = 600.0
POLL_S = 0.05


def build() -> FastAPI:
    """Build a replica's application, which has started once its models answer."""
    settings = load_settings(os.environ)
    configure_logs(settings.log_level, settings.log_format)
    app = create_app(settings)
    app.add_middleware(WithoutRequestId)  # the outermost, as the last one that is added
    lifespan = app.router.lifespan_context
    app.router.lifespan_context = lambda app: _ready(lifespan(app), app.state.lifecycle)
    return app


class Replica:
    """A replica; Serve checks its health, and replaces it after three failures."""

    app: FastAPI

    async def check_health(self) -> None:
        """Check what `GET /health/ready` checks.

        Raises:
            RuntimeError: a required model does not answer.
        """
        readiness = self.app.state.lifecycle.readiness()
        if not readiness.ready:
            raise RuntimeError("; ".join(readiness.reasons))


deployment: Any = serve.deployment(name="Torchlane")(serve.ingress(build)(Replica))
application = deployment.bind()


@contextlib.asynccontextmanager
async def _ready(
    lifespan: AbstractAsyncContextManager[Any], lifecycle: Lifecycle
) -> AsyncIterator[None]:
    """Wait until the replica is ready, because Serve sends requests as soon as it has started."""
    async with lifespan:
        try:
            async with asyncio.timeout(START_S):
                while not lifecycle.readiness().ready:  # noqa: ASYNC110 # it has no event
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            reasons = "; ".join(lifecycle.readiness().reasons)
            raise RuntimeError(f"not ready after {START_S:g} s: {reasons}") from None
        yield
