"""GET /models/NAME/versions/VERSION/report: the report that export wrote, as a separate page."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import FastAPI, Request, Response

from app.api.access import Reader
from app.api.endpoints import version_number
from app.api.openapi.errors import ERRORS
from app.api.openapi.headers import path_parameters
from app.api.service import Service
from app.errors import ModelNotFound
from app.types import ModelId
from models.system.contained import FileRejected, read_inside

PATH = "/models/{name}/versions/{version}/report"
REPORT_FILE = "report.html"
MAX_BYTES = 8 << 20
# No digest or signature covers it, so it is shown as an untrusted page: without scripts, and
# isolated from this server's origin.
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": "sandbox; default-src 'none'; style-src 'unsafe-inline'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}
ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/html": {"schema": {"type": "string"}}}, "description": "The report"}
}


def add_report(app: FastAPI, service: Service) -> None:
    """Add the call to the application."""

    @app.get(
        PATH,
        tags=["models"],
        operation_id="get_report",
        response_class=Response,
        responses={**ANSWER, **ERRORS[404]},
        dependencies=[Reader],
        openapi_extra={"parameters": path_parameters(PATH)},
    )
    async def get_report(request: Request) -> Response:
        """The report of export's measurements and checks of a version, for people."""
        name, version = request.path_params["name"], version_number(request.path_params["version"])
        known = (each.id for each in service.loaded.statuses(name))
        model = next((each for each in known if each.version == version), None)
        if model is None:
            raise ModelNotFound(
                f"there is no version {version} of {name!r}; GET /models lists all versions"
            )
        return Response(await asyncio.to_thread(_read, service, model), headers=HEADERS)


def _read(service: Service, model: ModelId) -> bytes:
    """The bytes of a report.

    Raises:
        ModelNotFound: if there is no readable report.
    """
    root = service.repository.root
    try:
        return read_inside(root / model.name / str(model.version), REPORT_FILE, MAX_BYTES, root)
    except FileRejected as error:
        raise ModelNotFound(f"{model} has no report to show: {error}") from error
    except OSError as error:
        raise ModelNotFound(f"{model} has no {REPORT_FILE}; export writes one") from error
