"""Operator calls: find new versions, load and unload versions, and profile the process."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response

from app.api.access import Admin
from app.api.endpoints import version_number
from app.api.native.states import release_state
from app.api.negotiation import NEVER, fields_of, gzip_of
from app.api.openapi import schemas
from app.api.openapi.errors import ERRORS
from app.api.openapi.headers import RETRY_AFTER
from app.api.queries import check_query
from app.api.service import Service
from app.errors import Abandoned
from app.serving.releases.steps import Action
from app.serving.rollout import Changes
from app.types import ModelId, Profile

CONFLICT = 409
RESPONSES: dict[int | str, dict[str, Any]] = {
    CONFLICT: {
        "model": schemas.ChangesAnswer,
        "description": "A version failed to load; versions served before still serve",
    },
    **ERRORS[400],
    **ERRORS[422],
    **ERRORS[503],
}
PROFILED: dict[int | str, dict[str, Any]] = {
    200: {
        "content": {"application/json": {"schema": {"type": "object"}}},
        "description": "A trace in Chrome's format, for ui.perfetto.dev or chrome://tracing",
        "headers": {
            "X-Torchlane-Profile": {
                "description": "How many seconds were recorded, and why it ended",
                "schema": {"type": "string"},
            }
        },
    },
    CONFLICT: {
        "model": schemas.ErrorBody,
        "description": "This process is already being profiled",
        "headers": RETRY_AFTER,
    },
}
LEAST_S, MOST_S, USUAL_S = 0.1, 60.0, 5.0
Seconds = Annotated[float, Query(ge=LEAST_S, le=MOST_S, description="how long to record")]
Name = Annotated[str, Path(description="a model of the repository")]
# A string: callers without the scope are rejected before its value is parsed.
Version = Annotated[str, Path(description="a version of the model")]


def _check_query(request: Request, _: Admin) -> None:
    """Refuse unknown query parameters, which would have no effect; first the caller is checked.

    Raises:
        InvalidInput: naming the parameters of the call.
    """
    check_query(
        request.query_params,
        *(each.alias for each in request.scope["route"].dependant.query_params),
    )


def add_admin(app: FastAPI, service: Service) -> None:
    """Add the calls; `Admin` rejects every caller while no admin key is configured."""
    router = APIRouter(
        prefix="/admin", tags=["admin"], responses=RESPONSES, dependencies=[Depends(_check_query)]
    )
    lifecycle = service.lifecycle

    @router.post("/reload", operation_id="reload")
    async def reload(_: Admin, response: Response) -> schemas.ChangesAnswer:
        """Check the repository now; versions that failed to load are tried again."""
        return _answer(await lifecycle.reload(), response)

    @router.post("/models/{name}/load", operation_id="load_model", responses=ERRORS[404])
    async def load_model(_: Admin, response: Response, name: Name) -> schemas.ChangesAnswer:
        """Serve the versions that the version policy selects, including unloaded versions."""
        return _answer(await lifecycle.load(name), response)

    @router.post("/models/{name}/unload", operation_id="unload_model", responses=ERRORS[404])
    async def unload_model(_: Admin, response: Response, name: Name) -> schemas.ChangesAnswer:
        """Stop serving all versions of a model until it is loaded again."""
        return _answer(await lifecycle.unload(name), response)

    @router.post(
        "/models/{name}/versions/{version}/load",
        operation_id="load_version",
        responses=ERRORS[404],
    )
    async def load_version(
        _: Admin, response: Response, name: Name, version: Version
    ) -> schemas.ChangesAnswer:
        """Serve a version in addition to the versions that the version policy selects."""
        return _answer(await lifecycle.load(name, version_number(version)), response)

    @router.post(
        "/models/{name}/versions/{version}/unload",
        operation_id="unload_version",
        responses=ERRORS[404],
    )
    async def unload_version(
        _: Admin, response: Response, name: Name, version: Version
    ) -> schemas.ChangesAnswer:
        """Stop serving a version, after the policy's next version has replaced it."""
        return _answer(await lifecycle.unload(name, version_number(version)), response)

    async def acted(name: str, action: Action) -> schemas.ModelRelease | None:
        await service.releases.act(name, action)
        return release_state(service, name)

    @router.post(
        "/models/{name}/release/pause", operation_id="pause_release", responses=ERRORS[404]
    )
    async def pause_release(_: Admin, name: Name) -> schemas.ModelRelease | None:
        """Stay at the current step of a release; it is still rolled back if it fails."""
        return await acted(name, "pause")

    @router.post(
        "/models/{name}/release/resume", operation_id="resume_release", responses=ERRORS[404]
    )
    async def resume_release(_: Admin, name: Name) -> schemas.ModelRelease | None:
        """Go on with a release that was paused; begin one again that was rolled back."""
        return await acted(name, "resume")

    @router.post(
        "/models/{name}/release/rollback", operation_id="rollback_release", responses=ERRORS[404]
    )
    async def rollback_release(_: Admin, name: Name) -> schemas.ModelRelease | None:
        """Give the old version all requests that name no version."""
        return await acted(name, "rollback")

    @router.post("/profile", operation_id="profile", response_class=Response, responses=PROFILED)
    async def profile(_: Admin, request: Request, seconds: Seconds = USUAL_S) -> Response:
        """Record batches and operators of the answering process while it serves."""
        codings = fields_of(request.headers.raw).get(b"accept-encoding", b"")
        compressed = gzip_of(codings) != NEVER
        work = asyncio.create_task(service.profiler.profile(seconds, compressed=compressed))
        left = asyncio.create_task(_left(request))
        try:
            await asyncio.wait((work, left), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                raise Abandoned("the client disconnected during the recording")
            return _traced(await work, compressed=compressed)
        finally:
            left.cancel()
            work.cancel()
            await asyncio.gather(left, work, return_exceptions=True)  # the recorder has stopped

    app.include_router(router)


async def _left(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _traced(profile: Profile, *, compressed: bool) -> Response:
    moment = dt.datetime.now(dt.UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {
        "cache-control": "no-store",
        "content-disposition": f'attachment; filename="torchlane-{moment}.json"',
        "vary": "Accept-Encoding",
        "x-torchlane-profile": f"{profile.seconds:g} s; {profile.ended}",
    }
    if compressed:
        headers["content-encoding"] = "gzip"
    return Response(profile.content, headers=headers, media_type="application/json")


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
