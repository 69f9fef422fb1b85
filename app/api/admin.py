"""Operator calls: look for new versions, load them, unload them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Path, Response

from app.api.access import Admin
from app.api.endpoints import version_number
from app.api.openapi import schemas
from app.api.openapi.errors import ERRORS
from app.api.service import Service
from app.serving.rollout import Changes
from app.types import ModelId

CONFLICT = 409
RESPONSES: dict[int | str, dict[str, Any]] = {
    CONFLICT: {
        "model": schemas.ChangesAnswer,
        "description": "A version failed to load; what was served before still is",
    },
    **ERRORS[422],
    **ERRORS[503],
}
Name = Annotated[str, Path(description="a model of the repository")]
# Text: a caller without the scope is rejected before its value is parsed.
Version = Annotated[str, Path(description="a version of the model")]


def add_admin(app: FastAPI, service: Service) -> None:
    """Add the calls; `Admin` rejects every caller while no key for them is configured."""
    router = APIRouter(prefix="/admin", tags=["admin"], responses=RESPONSES)
    lifecycle = service.lifecycle

    @router.post("/reload", operation_id="reload")
    async def reload(_: Admin, response: Response) -> schemas.ChangesAnswer:
        """Check the repository now; versions that failed to load are tried again."""
        return _answer(await lifecycle.reload(), response)

    @router.post("/models/{name}/load", operation_id="load_model", responses=ERRORS[404])
    async def load_model(_: Admin, response: Response, name: Name) -> schemas.ChangesAnswer:
        """Serve the versions that the version policy selects, even those that were unloaded."""
        return _answer(await lifecycle.load(name), response)

    @router.post("/models/{name}/unload", operation_id="unload_model", responses=ERRORS[404])
    async def unload_model(_: Admin, response: Response, name: Name) -> schemas.ChangesAnswer:
        """Serve no version of a model until it is loaded again."""
        return _answer(await lifecycle.unload(name), response)

    @router.post(
        "/models/{name}/versions/{version}/load",
        operation_id="load_version",
        responses=ERRORS[404],
    )
    async def load_version(
        _: Admin, response: Response, name: Name, version: Version
    ) -> schemas.ChangesAnswer:
        """Serve a version in addition to those that the version policy selects."""
        return _answer(await lifecycle.load(name, version_number(version)), response)

    @router.post(
        "/models/{name}/versions/{version}/unload",
        operation_id="unload_version",
        responses=ERRORS[404],
    )
    async def unload_version(
        _: Admin, response: Response, name: Name, version: Version
    ) -> schemas.ChangesAnswer:
        """Stop serving a version; the policy's next one takes its place first."""
        return _answer(await lifecycle.unload(name, version_number(version)), response)

    app.include_router(router)


def _answer(changes: Changes, response: Response) -> schemas.ChangesAnswer:
    if changes.failed:
        response.status_code = CONFLICT
    return schemas.ChangesAnswer(
        loaded=[_version(model) for model in changes.loaded],
        retired=[_version(model) for model in changes.retired],
        failed=[
            schemas.FailedVersion(
                model=status.id.name, version=status.id.version, problem=status.problem or ""
            )
            for status in changes.failed
        ],
    )


def _version(model: ModelId) -> schemas.VersionName:
    return schemas.VersionName(model=model.name, version=model.version)
