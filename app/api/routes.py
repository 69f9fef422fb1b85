"""All routes, and their entries in the OpenAPI document."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.access import Scraper
from app.api.admin import add_admin
from app.api.docs_page import add_docs_page
from app.api.endpoints import Endpoint
from app.api.errors import ROUTE, protocol_of
from app.api.native import predictions as native
from app.api.native.models import add_models
from app.api.oip import infer as oip
from app.api.oip.routes import add_oip
from app.api.openapi import schemas
from app.api.openapi.document import prediction_docs
from app.api.openapi.protocols import infer_docs, torchserve_docs
from app.api.openapi.text import text_docs
from app.api.page.routes import add_page
from app.api.service import Service
from app.api.text import classify, embeddings, rerank
from app.api.text.models import add_openai_models
from app.api.torchserve import predictions as torchserve
from app.api.transport.asgi_predict import PredictionApp
from app.metrics import OPENMETRICS

PING: dict[str, Any] = {
    "model": schemas.Ping,
    "description": "Not ready; GET /health/ready says why",
}


class PredictRoute(APIRoute):
    """A documented route that passes its requests directly to an ASGI application.

    Attributes:
        application: the application.
        allowed: the methods of all routes with this path.
    """

    application: ASGIApp
    allowed: str = "POST"

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, unless it has another method."""
        if scope["method"] not in (self.methods or ()):
            raise HTTPException(405, headers={"Allow": self.allowed})
        scope[ROUTE] = self.path
        await self.application(scope, receive, send)


def predictions() -> tuple[Endpoint, ...]:
    """The prediction endpoints of all protocols."""
    text = (*embeddings.ENDPOINTS, *rerank.ENDPOINTS, *classify.ENDPOINTS)
    return (*native.ENDPOINTS, *oip.endpoints(), *torchserve.ENDPOINTS, *text)


def add_routes(
    app: FastAPI, service: Service, endpoints: Sequence[Endpoint], *, shows_page: bool
) -> None:
    """Add every route to the application; `endpoints` are the prediction endpoints."""
    for endpoint in endpoints:
        route, protocol = endpoint.route, protocol_of(endpoint.route)
        suffix = "_by_version" * ("{version}" in route)
        if protocol == "oip":
            _add_prediction(app, service, endpoint, _infer, suffix, infer_docs(route))
        elif protocol == "torchserve":
            docs = torchserve_docs(route)
            _add_prediction(app, service, endpoint, _predictions, suffix, docs)
            docs = {**docs, "methods": ["PUT"]}  # for `curl -T`
            _add_prediction(app, service, endpoint, _predictions, f"{suffix}_put", docs)
        elif protocol in ("openai", "tei"):
            _add_prediction(app, service, endpoint, TEXT_CALLS[route], "", text_docs(route))
        else:
            documented = _batch_predict if endpoint.many else _predict
            suffix = suffix or "_by_model" * ("{name}" in route)
            docs = prediction_docs(route, many=endpoint.many)
            _add_prediction(app, service, endpoint, documented, suffix, docs)
    add_models(app, service)
    add_admin(app, service)
    add_oip(app, service)
    add_openai_models(app, service)
    _add_health(app, service)
    add_docs_page(app)
    add_page(app, service, shown=shows_page)


async def _predict() -> None:
    """One input, one prediction."""


async def _batch_predict() -> None:
    """Many inputs, many predictions in the same order; equal inputs are computed once."""


async def _infer() -> None:
    """Many items as tensors, with outputs for each; equal items are computed once."""


async def _predictions() -> None:
    """One input, in TorchServe's format."""


async def _v1_embeddings() -> None:
    """Embeddings of texts, in OpenAI's format."""


async def _embeddings() -> None:
    """Embeddings of texts, in infinity's format."""


async def _embed() -> None:
    """Embeddings of texts, in the format of text-embeddings-inference."""


async def _rerank() -> None:
    """Texts, ranked by how well they answer a query."""


async def _classify() -> None:
    """Labels of texts, with scores."""


TEXT_CALLS = {
    "/v1/embeddings": _v1_embeddings,
    "/embeddings": _embeddings,
    "/embed": _embed,
    "/rerank": _rerank,
    "/classify": _classify,
}


def _add_prediction(
    app: FastAPI,
    service: Service,
    endpoint: Endpoint,
    documented: Callable[[], Coroutine[Any, Any, None]],
    suffix: str,
    docs: dict[str, Any],
) -> None:
    """Add a route, documented by a function's name and docstring."""
    name = _name(documented) + suffix
    route = PredictRoute(
        endpoint.route,
        documented,
        name=name,
        operation_id=name,
        response_class=Response,
        **{"methods": ["POST"], **docs},
    )
    route.application = PredictionApp(service, endpoint)
    if documented is _predictions:
        route.allowed = "POST, PUT"
    app.router.routes.append(route)


def _name(documented: Callable[[], Coroutine[Any, Any, None]]) -> str:
    return documented.__name__.strip("_")


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
        """The required models can answer, and the server is not shutting down."""
        readiness = service.lifecycle.readiness()
        if readiness.ready:
            return schemas.Health(status="ready")
        response.status_code = 503
        return schemas.Health(status="not_ready", reasons=list(readiness.reasons))

    @app.get("/ping", tags=["health"], operation_id="ping", responses={503: PING})
    async def ping(response: Response) -> schemas.Ping:
        """Readiness in TorchServe's format."""
        found = service.lifecycle.readiness().ready
        response.status_code = 200 if found else 503
        return schemas.Ping(status="Healthy" if found else "Unhealthy")

    @app.get(
        "/metrics",
        tags=["health"],
        operation_id="metrics",
        response_class=Response,
        responses={
            200: {
                "content": {"text/plain": {}, OPENMETRICS: {}},
                "description": "Prometheus text format, or OpenMetrics if `Accept` names it",
            }
        },
        dependencies=[] if service.limits.open_metrics else [Scraper],
    )
    async def metrics(request: Request) -> Response:
        """The metrics, for Prometheus."""
        content, kind = await service.metrics.scraped_as(request.headers.get("accept", ""))
        return Response(content, headers={"content-type": kind, "vary": "Accept"})
