"""The REST calls of the Open Inference Protocol, except `infer`.

A model named `stats` is described only with a version: its own path has the statistics of all
models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRouter
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from app.api.access import Admin, Reader
from app.api.calls import BODY_LATE
from app.api.endpoints import version_number
from app.api.oip import repository
from app.api.oip.metadata import (
    ModelConfig,
    ModelMetadata,
    ServerMetadata,
    config_of,
    model_metadata,
    server_metadata,
)
from app.api.oip.openapi import ERRORS, TAG
from app.api.oip.repository import MAX_BYTES, IndexEntry, is_ready
from app.api.oip.statistics import Statistics, statistics
from app.api.openapi.headers import path_parameter
from app.api.queries import NoQuery
from app.api.service import Service
from app.api.transport.asgi_predict import read_body
from app.errors import DeadlineExceeded, InvalidInput
from models.system.byte_order import strip_byte_order_mark

NAME = path_parameter("name", {"type": "string"})
VERSION = path_parameter("version", {"type": "integer", "minimum": 1})
READ_ERRORS = {**ERRORS[400], **ERRORS[413], **ERRORS[503], **ERRORS[504]}


class Live(TypedDict):
    """The server is up."""

    live: bool


class Ready(TypedDict):
    """Whether the server answers predictions."""

    ready: bool


class ModelReady(TypedDict):
    """Whether a model answers predictions."""

    name: str
    ready: bool


def add_oip(app: FastAPI, service: Service) -> None:
    """Add the calls to the application."""
    _add_health(app, service)
    router = APIRouter(
        prefix="/v2", tags=[TAG], dependencies=[Reader, NoQuery], responses=ERRORS[400]
    )

    @router.get("", operation_id="v2_server")
    async def server() -> ServerMetadata:
        """The server, and the extensions that it supports."""
        return server_metadata(app.version)

    @router.get("/models/stats", operation_id="v2_stats")
    async def stats() -> Statistics:
        """Statistics of every loaded version since the server started."""
        return await statistics(service.metrics, repository.described(service.loaded))

    for path, suffix in (("", ""), ("/versions/{version}", "_by_version")):
        parameters = [NAME, VERSION] if suffix else [NAME]
        _add_model(router, service, f"/models/{{name}}{path}", suffix, parameters)
    _add_index(router, service)
    app.include_router(router)
    _add_loading(app, service)


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/v2/health/live", tags=["health"], operation_id="v2_live")
    async def live() -> Live:
        """The process is up."""
        return {"live": True}

    @app.get(
        "/v2/health/ready",
        tags=["health"],
        operation_id="v2_ready",
        responses={503: {"model": Ready, "description": "Not ready; GET /health/ready says why"}},
    )
    async def ready(response: Response) -> Ready:
        """The required models can answer, and the server is not shutting down."""
        found = service.lifecycle.readiness().ready
        response.status_code = 200 if found else 503
        return {"ready": found}


def _add_model(
    router: APIRouter, service: Service, path: str, suffix: str, parameters: list[dict[str, Any]]
) -> None:
    """Add the calls that describe a model, or one version of it."""
    shown: dict[str, Any] = {
        "responses": {**ERRORS[404], **ERRORS[503]},
        "openapi_extra": {"parameters": parameters},
    }
    unready: dict[int | str, dict[str, Any]] = {
        503: {"model": ModelReady, "description": "It cannot answer now"}
    }

    @router.get(path, operation_id=f"v2_model{suffix}", **shown)
    async def metadata(request: Request) -> ModelMetadata:
        """A model's inputs, outputs and loaded versions."""
        return model_metadata(service.loaded.tensors_of(*_named(request)), service.loaded)

    @router.get(
        f"{path}/ready",
        operation_id=f"v2_model_ready{suffix}",
        responses={**ERRORS[404], **unready},
        openapi_extra=shown["openapi_extra"],
    )
    async def ready(request: Request, response: Response) -> ModelReady:
        """Whether a model answers predictions."""
        name, version = _named(request)
        found = is_ready(service.lifecycle, name, version)
        response.status_code = 200 if found else 503
        return {"name": name, "ready": found}

    @router.get(f"{path}/config", operation_id=f"v2_config_of{suffix}", **shown)
    async def config(request: Request) -> ModelConfig:
        """A model in the form of Triton's model configuration."""
        model = service.loaded.tensors_of(*_named(request))
        return config_of(model, service.lifecycle, service.limits.max_items)

    @router.get(f"{path}/stats", operation_id=f"v2_model_stats{suffix}", **shown)
    async def stats(request: Request) -> Statistics:
        """Statistics of each loaded version of a model, or of one version."""
        versions = repository.versions(service.loaded, *_named(request))
        return await statistics(service.metrics, versions)


def _add_index(router: APIRouter, service: Service) -> None:
    body = {"type": "object", "properties": {"ready": {"type": "boolean"}}}

    @router.post(
        "/repository/index",
        operation_id="v2_repository_index",
        responses=READ_ERRORS,
        openapi_extra=_optional_body(body),
    )
    async def index(request: Request) -> list[IndexEntry]:
        """Every version that the server knows; with `ready`, only the served versions."""
        only_ready = (await _read_object(request, service)).get("ready", False)
        if not isinstance(only_ready, bool):
            raise InvalidInput(f"'ready' must be true or false, got {only_ready!r:.50}")
        return repository.index(service.loaded, only_ready=only_ready)


def _add_loading(app: FastAPI, service: Service) -> None:
    body = {"type": "object", "properties": {"parameters": {"type": "object"}}}
    shown: dict[str, Any] = {
        "tags": ["admin"],
        "response_class": Response,
        "dependencies": [NoQuery],
        "responses": {**READ_ERRORS, **ERRORS[404], 200: {"description": "Done; no body"}},
        "openapi_extra": {"parameters": [NAME], **_optional_body(body)},
    }

    @app.post("/v2/repository/models/{name}/load", operation_id="v2_load", **shown)
    async def load(_: Admin, request: Request) -> Response:
        """Serve the versions that the version policy selects, including unloaded versions."""
        parameters = await _read_parameters(request, service)
        await repository.load(service.lifecycle, request.path_params["name"], parameters)
        return Response()

    @app.post("/v2/repository/models/{name}/unload", operation_id="v2_unload", **shown)
    async def unload(_: Admin, request: Request) -> Response:
        """Stop serving all versions of a model until it is loaded again."""
        await _read_parameters(request, service)
        await service.lifecycle.unload(request.path_params["name"])
        return Response()


def _optional_body(schema: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": False, "content": {"application/json": {"schema": schema}}}}


def _named(request: Request) -> tuple[str, int | None]:
    """The name and the version in a path."""
    return request.path_params["name"], version_number(request.path_params.get("version"))


async def _read_parameters(request: Request, service: Service) -> Mapping[str, object]:
    parameters = (await _read_object(request, service)).get("parameters", {})
    if not isinstance(parameters, dict):
        raise InvalidInput("'parameters' must be an object")
    return parameters


async def _read_object(request: Request, service: Service) -> Mapping[str, object]:
    """The JSON object of a body, which may be empty; clients send no Content-Type.

    Raises:
        InvalidInput: if the body is anything else.
        PayloadTooLarge, DeadlineExceeded: if it is too large or late.
    """
    try:
        async with asyncio.timeout(service.limits.timeout_s):
            body = await read_body(request.receive, MAX_BYTES, service.bodies)
    except TimeoutError as error:
        raise DeadlineExceeded(BODY_LATE) from error
    try:
        found = orjson.loads(strip_byte_order_mark(body) or b"{}")
    except ValueError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidInput("the body must be a JSON object, or empty")
    return found
