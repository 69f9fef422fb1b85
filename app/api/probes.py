"""Readiness at the paths of several platforms, in TorchServe's form."""

from __future__ import annotations

from fastapi import FastAPI, Response

from app.api.openapi import schemas
from app.api.service import Service

HEALTH = "/health"


def add_probe(app: FastAPI, service: Service, path: str, name: str) -> None:
    """Add a call that answers 200 if the server is ready, else 503; its operation has this name."""
    unready = {"model": schemas.Ping, "description": "Not ready; GET /health/ready says why"}

    @app.get(path, tags=["health"], operation_id=name, responses={503: unready})
    async def probe(response: Response) -> schemas.Ping:
        """Readiness, as hosting platforms and the clients of other servers ask for it."""
        is_ready = service.lifecycle.readiness().ready
        response.status_code = 200 if is_ready else 503
        return schemas.Ping(status="Healthy" if is_ready else "Unhealthy")
