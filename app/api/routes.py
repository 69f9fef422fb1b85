"""All routes, and how they stand in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.types import Receive, Scope, Send

from app.api import schemas
from app.api.openapi import ERRORS, prediction_docs
from app.api.predict import serve
from app.api.service import Service
from app.errors import ModelNotFound
from app.lifecycle import ModelState
from app.metrics import CONTENT_TYPE

Endpoint = Callable[[Request], Coroutine[Any, Any, Response]]


class PredictRoute(APIRoute):
    """A documented route whose endpoint takes the request and gives the response as they are.

    FastAPI's own way from a route to its endpoint (dependencies, validation, serialisation) costs
    about 100 us a request, and there is nothing in it that these endpoints need.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Straight to the endpoint."""
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)
            return
        response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


def add_routes(app: FastAPI, service: Service) -> None:
    """Put every route on the application."""
    _add_prediction(app, service)
    _add_models(app, service)
    _add_health(app, service)


def _add_prediction(app: FastAPI, service: Service) -> None:
    async def predict(request: Request) -> Response:
        """One input, one prediction, by the default model."""
        return await serve(service, request, many=False)

    async def batch_predict(request: Request) -> Response:
        """Many inputs, many predictions in the same order; equal inputs are computed once."""
        return await serve(service, request, many=True)

    for prefix, suffix in (
        ("", ""),
        ("/models/{name}", "_by_model"),
        ("/models/{name}/versions/{version:int}", "_by_version"),
    ):
        for path, endpoint, many in (
            ("predict", predict, False),
            ("batch-predict", batch_predict, True),
        ):
            app.router.add_api_route(
                f"{prefix}/{path}",
                endpoint,
                methods=["POST"],
                operation_id=endpoint.__name__ + suffix,
                tags=["predictions"],
                response_class=Response,
                route_class_override=PredictRoute,
                **prediction_docs(prefix, many=many),
            )


def _add_models(app: FastAPI, service: Service) -> None:
    @app.get("/models", tags=["models"], operation_id="list_models")
    async def list_models() -> schemas.ModelList:
        """Every model in the repository, and what is loaded of it."""
        names = dict.fromkeys(status.id.name for status in service.lifecycle.statuses())
        return schemas.ModelList(models=[_model_info(service, name) for name in names])

    @app.get("/models/{name}", tags=["models"], operation_id="get_model", responses=ERRORS[404])
    async def get_model(name: str) -> schemas.ModelInfo:
        """One model: versions, state, replicas and the public part of its manifest."""
        if not service.lifecycle.statuses(name):
            raise ModelNotFound(f"there is no model {name!r}; GET /models lists what there is")
        return _model_info(service, name)


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/health/live", tags=["health"], operation_id="live")
    async def live() -> schemas.Health:
        """The process is up."""
        return schemas.Health(status="live")

    @app.get(
        "/health/ready",
        tags=["health"],
        operation_id="ready",
        responses={503: {"model": schemas.Health, "description": "Not ready; reasons say why"}},
    )
    async def ready(response: Response) -> schemas.Health:
        """Every model can answer and the server is not shutting down."""
        readiness = service.lifecycle.readiness()
        if readiness.ready:
            return schemas.Health(status="ready")
        response.status_code = 503
        return schemas.Health(status="not_ready", reasons=list(readiness.reasons))

    @app.get(
        "/metrics",
        tags=["health"],
        operation_id="metrics",
        response_class=Response,
        responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format"}},
    )
    async def metrics() -> Response:
        """What has been counted, for Prometheus."""
        return Response(service.metrics.exposition(), media_type=CONTENT_TYPE)


def _model_info(service: Service, name: str) -> schemas.ModelInfo:
    lifecycle = service.lifecycle
    statuses = lifecycle.statuses(name)
    loaded = next((model for model in lifecycle.models() if model.id.name == name), None)
    state = ModelState.READY if loaded else statuses[0].state
    return schemas.ModelInfo(
        name=name,
        default=name == lifecycle.default_model,
        state=state.value,
        version=loaded.id.version if loaded else None,
        variant=loaded.variant if loaded else None,
        versions=[
            schemas.VersionState(version=s.id.version, state=s.state.value, problem=s.problem)
            for s in statuses
        ],
        replicas=[
            schemas.ReplicaInfo(name=replica, device=str(device), state=replica_state.value)
            for replica, (device, replica_state) in lifecycle.replica_states().items()
        ],
        manifest=loaded.manifest.public() if loaded else None,
    )
