"""All protocols, all routes, and their entries in the OpenAPI document."""

from __future__ import annotations

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from app.api.access import Scraper
from app.api.admin import add_admin
from app.api.dialect import Dialects
from app.api.errors import FORM, ROUTE, ErrorForm
from app.api.instances import InstancesCall
from app.api.invocations.call import InvocationsCall
from app.api.invocations.dialect import PREDICT, invocations
from app.api.kserve.dialect import KSERVE
from app.api.native.dialect import NATIVE
from app.api.oip.dialect import OIP
from app.api.openapi import schemas
from app.api.page.routes import add_page
from app.api.probes import HEALTH, add_probe
from app.api.service import Service
from app.api.static_files import PackagedFiles
from app.api.text.dialect import OPENAI, TEI
from app.api.torchserve.dialect import TORCHSERVE
from app.api.transport.asgi_predict import PredictionApp
from app.metrics import OPENMETRICS

# The first one also has the paths that belong to none. `dialects_with` adds `invocations`.
DIALECTS = (NATIVE, OIP, TORCHSERVE, KSERVE, OPENAI, TEI)
SWAGGER = ("fastapi_offline", "static")  # the distribution files of Swagger UI


class PredictRoute(APIRoute):
    """A documented route that passes its requests directly to an ASGI application.

    Attributes:
        application: the application.
        allowed: the methods of all routes with this path, set once all are added.
        form: how the protocol writes errors.
    """

    application: ASGIApp
    allowed: str
    form: ErrorForm

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, unless it has another method."""
        if scope["method"] not in (self.methods or ()):
            raise HTTPException(405, headers={"Allow": self.allowed})
        scope[ROUTE], scope[FORM] = self.path, self.form
        await self.application(scope, receive, send)


def dialects_with(predict_route: str | None = None, health_route: str | None = None) -> Dialects:
    """All protocols, with the paths that a platform calls.

    Args:
        predict_route: another path of POST /invocations.
        health_route: another path of GET /health.

    Raises:
        ValueError: if a prediction in another form has the first path.
    """
    taken = dialects_with().endpoints.at(predict_route.encode()) if predict_route else None
    if taken is not None:
        if taken.call not in (InstancesCall, InvocationsCall):
            raise ValueError(
                f"TORCHLANE_PREDICT_ROUTE={predict_route} is a path of this server, whose bodies "
                "have another form: choose another, such as /invocations"
            )
        predict_route = None
    return Dialects((*DIALECTS, invocations(predict_route, health_route)))


def add_routes(
    app: FastAPI,
    service: Service,
    *,
    shows_page: bool,
    predict_route: str | None = None,
    health_route: str | None = None,
) -> None:
    """Add every route to the application.

    Args:
        app: the application.
        service: its parts.
        shows_page: whether GET / has a page.
        predict_route: another path of POST /invocations, which is one of the service's endpoints.
        health_route: another path of GET /health.

    Raises:
        ValueError: if another call has one of these paths.
    """
    for dialect, endpoints in service.dialects.served:
        for endpoint in endpoints:
            operations = dialect.docs.of(endpoint)
            application = PredictionApp(service, endpoint)
            for docs in operations:
                route = PredictRoute(
                    endpoint.route,
                    _passed_on,
                    operation_id=docs["name"],
                    response_class=Response,
                    **docs,
                )
                route.application, route.form = application, dialect.errors
                app.router.routes.append(route)
        dialect.add_routes(app, service)
    add_admin(app, service)
    _add_health(app, service)
    _add_docs_page(app)
    add_page(app, service, shown=shows_page)
    if health_route is not None and health_route not in dialects_with().probes:
        add_probe(app, service, health_route, "platform_health")
    _check_own(app, "POST", "TORCHLANE_PREDICT_ROUTE", predict_route, PREDICT)
    _check_own(app, "GET", "TORCHLANE_HEALTH_ROUTE", health_route, HEALTH)
    _allow(app)


def _check_own(app: FastAPI, method: str, setting: str, path: str | None, usual: str) -> None:
    """Check that only one route has a path that a platform chose: one would hide the other.

    Raises:
        ValueError: if several have it.
    """
    if path is None:
        return
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "headers": [],
    }
    if sum(route.matches(scope)[0] is Match.FULL for route in app.routes) > 1:
        raise ValueError(
            f"{setting}={path} is the path of another call: choose another, such as {usual}"
        )


def _allow(app: FastAPI) -> None:
    """Tell each prediction route the methods of all routes with its path."""
    by_path: dict[str, dict[str, None]] = {}  # in the order in which they were added
    for route in app.routes:
        if isinstance(route, Route):
            by_path.setdefault(route.path, {}).update(dict.fromkeys(sorted(route.methods or ())))
    for route in app.routes:
        if isinstance(route, PredictRoute):
            route.allowed = ", ".join(by_path[route.path])


async def _passed_on() -> None:
    """Stand in for the application that a `PredictRoute` calls."""


def _add_health(app: FastAPI, service: Service) -> None:
    add_probe(app, service, HEALTH, "health")

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


def _add_docs_page(app: FastAPI) -> None:
    """Serve the API reference at /docs: Swagger UI from local files, without internet access.

    All addresses in it are relative, so it works behind a proxy that removes a path prefix.
    """
    # Swagger UI's style sheet embeds its icons as data: URLs.
    served = PackagedFiles((__package__, "docs"), SWAGGER, images="data:")
    app.add_route("/docs", served.page("docs.html"), include_in_schema=False)
    app.add_route("/docs/", _back_to_docs, include_in_schema=False)
    app.mount("/docs", served)


async def _back_to_docs(_: Request) -> RedirectResponse:
    """Redirect without the host and prefix, which a proxy may have changed."""
    return RedirectResponse("../docs")
