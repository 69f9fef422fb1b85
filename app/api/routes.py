"""All protocols, all routes, and their entries in the OpenAPI document."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.access import Scraper
from app.api.admin import add_admin
from app.api.docs_page import add_docs_page
from app.api.errors import ROUTE
from app.api.native.dialect import NATIVE
from app.api.oip.dialect import OIP
from app.api.openapi import schemas
from app.api.page.routes import add_page
from app.api.service import Service
from app.api.text.dialect import OPENAI, TEI
from app.api.torchserve.dialect import TORCHSERVE
from app.api.transport.asgi_predict import PredictionApp
from app.metrics import OPENMETRICS

DIALECTS = (NATIVE, OIP, TORCHSERVE, OPENAI, TEI)


class PredictRoute(APIRoute):
    """A documented route that passes its requests directly to an ASGI application.

    Attributes:
        application: the application.
        allowed: the methods of all routes with this path.
    """

    application: ASGIApp
    allowed: str

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, unless it has another method."""
        if scope["method"] not in (self.methods or ()):
            raise HTTPException(405, headers={"Allow": self.allowed})
        scope[ROUTE] = self.path
        await self.application(scope, receive, send)


def add_routes(app: FastAPI, service: Service, *, shows_page: bool) -> None:
    """Add every route to the application."""
    for dialect, endpoints in service.dialects.served:
        for endpoint in endpoints:
            operations = dialect.docs.of(endpoint)
            application = PredictionApp(service, endpoint)
            allowed = ", ".join(method for docs in operations for method in docs["methods"])
            for docs in operations:
                route = PredictRoute(
                    endpoint.route,
                    _passed_on,
                    operation_id=docs["name"],
                    response_class=Response,
                    **docs,
                )
                route.application, route.allowed = application, allowed
                app.router.routes.append(route)
        dialect.add_routes(app, service)
    add_admin(app, service)
    _add_health(app, service)
    add_docs_page(app)
    add_page(app, service, shown=shows_page)


async def _passed_on() -> None:
    """Stand in for the application that a `PredictRoute` calls."""


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
        reasons, warnings = list(readiness.reasons), list(readiness.warnings)
        if readiness.ready:
            return schemas.Health(status="ready", warnings=warnings)
        response.status_code = 503
        return schemas.Health(status="not_ready", reasons=reasons, warnings=warnings)

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
