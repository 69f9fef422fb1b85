"""GET /models/NAME/shadow: the inputs for which a shadow gave another answer."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import FastAPI, Request, Response

from app.api.access import Admin
from app.api.openapi import schemas
from app.api.openapi.errors import ERRORS
from app.api.openapi.headers import path_parameter
from app.api.queries import check_query
from app.api.service import Service
from app.codecs.base import JSON
from app.errors import ModelNotFound

ANSWER: dict[int | str, dict[str, Any]] = {
    200: {"model": schemas.ShadowInputs, "description": "The kept inputs"}
}
HEADERS = {"Cache-Control": "no-store"}  # callers' data


def add_shadow(app: FastAPI, service: Service) -> None:
    """Add the call to the application."""

    @app.get(
        "/models/{name}/shadow",
        tags=["admin"],
        operation_id="get_shadow",
        response_class=Response,
        responses={**ANSWER, **ERRORS[400], **ERRORS[404]},
        openapi_extra={"parameters": [path_parameter("name", {"type": "string"})]},
    )
    async def get_shadow(_: Admin, request: Request) -> Response:
        """Inputs for which a shadow gave another answer, if the models file keeps any."""
        check_query(request.query_params)
        name, shadows = request.path_params["name"], service.shadows
        shadow = shadows.of(name)
        if shadow is None:
            raise ModelNotFound(
                f"{name!r} has no shadow; docs/releases.md says how the models file sets one"
            )
        kept = await shadows.differing.of(name, shadow)
        head = {**shadow.model_dump(), "problem": shadows.problem(name, shadow)}
        # The entries are JSON already.
        content = b'%b,"differing":[%b]}' % (orjson.dumps(head)[:-1], b",".join(kept))
        return Response(content, headers=HEADERS, media_type=JSON)
