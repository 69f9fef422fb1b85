"""GET /models and GET /models/NAME: what a caller needs; with `?full=true` all details."""

from __future__ import annotations

from typing import Any, TypeAlias

from fastapi import FastAPI, Request

from app.api.access import Reader
from app.api.endpoints import version_number
from app.api.native.states import (
    comparisons,
    release_state,
    shadow_state,
    version_state,
    weights_of,
)
from app.api.openapi import schemas
from app.api.openapi.errors import ERRORS
from app.api.openapi.headers import path_parameter
from app.api.queries import check_query
from app.api.service import Service
from app.codecs.base import JSON
from app.errors import InvalidInput, ModelNotFound
from app.registry.loaded_models import (
    LoadedHandler,
    LoadedModel,
    ModelState,
    ReplicaStatus,
)
from app.serving.releases.judge import AllCounts

Loaded: TypeAlias = LoadedModel | LoadedHandler
FULL: dict[str, Any] = {
    "name": "full",
    "in": "query",
    "required": False,
    "description": "also what runs where, and how it was made and verified",
    "schema": {"type": "boolean", "default": False},
}
VERSION: dict[str, Any] = {
    "name": "version",
    "in": "query",
    "required": False,
    "description": "a loaded version; default: the version that serves requests for the model",
    "schema": {"type": "integer", "minimum": 1},
}
BAD_QUERY: dict[int | str, dict[str, Any]] = {
    **ERRORS[400],
    422: {
        "model": schemas.ErrorBody,
        "description": "`full` is neither true nor false",
    },
}


def add_models(app: FastAPI, service: Service) -> None:
    """Add both calls to the application."""

    @app.get(
        "/models",
        tags=["models"],
        operation_id="list_models",
        responses=BAD_QUERY,
        dependencies=[Reader],
        openapi_extra={"parameters": [FULL]},
    )
    async def list_models(request: Request) -> schemas.ModelList:
        """Every model in the repository, and its loaded versions."""
        check_query(request.query_params, "full")
        describe = _details if _wants_all(request) else _summary
        names = service.loaded.names
        counts = await comparisons(service, names)
        return schemas.ModelList(
            models=[describe(service, name, service.loaded.current(name), counts) for name in names]
        )

    @app.get(
        "/models/{name}",
        tags=["models"],
        operation_id="get_model",
        responses={**ERRORS[404], **BAD_QUERY},
        dependencies=[Reader],
        openapi_extra={"parameters": [path_parameter("name", {"type": "string"}), FULL, VERSION]},
    )
    async def get_model(request: Request) -> schemas.ModelDetails | schemas.ModelInfo:
        """One model: its versions, its inputs and its outputs."""
        check_query(request.query_params, "full", "version")
        name = request.path_params["name"]
        if name not in service.loaded.names:
            raise ModelNotFound(f"there is no model {name!r}; GET /models lists all models")
        describe = _details if _wants_all(request) else _info
        loaded = _named(service, name, request)
        return describe(service, name, loaded, await comparisons(service, (name,)))


def _named(service: Service, name: str, request: Request) -> Loaded | None:
    """The loaded version that the query names; without one, the version that serves, if any.

    Raises:
        ModelNotFound: if that version is not loaded.
    """
    given, current = request.query_params.getlist("version"), service.loaded.current(name)
    if not given:
        return current
    number = version_number(",".join(given))  # several are not a number
    if current is None:
        raise ModelNotFound(f"no version of {name!r} is loaded")
    return service.loaded.handler(name, number) or service.loaded.resolve(name, number)


def _wants_all(request: Request) -> bool:
    """Whether the query asks for all details.

    Raises:
        InvalidInput: if `full` is neither true nor false.
    """
    given = request.query_params.getlist("full")
    if given in ([], ["false"], ["true"]):
        return given == ["true"]
    raise InvalidInput(f"the query has full={'&full='.join(given)!r}; use full=true or full=false")


def _summary(
    service: Service, name: str, loaded: Loaded | None, counts: AllCounts
) -> schemas.ModelSummary:
    statuses = service.loaded.statuses(name)
    problem = service.loaded.unreadable_folders.get(name)
    unknown = ModelState.FAILED if problem else ModelState.UNLOADED
    newest = statuses[0].state if statuses else unknown
    state = ModelState.READY if loaded else newest
    if loaded is not None:  # a handler's models may have gone, and a model may be cold
        shown = (each.state for each in statuses if each.id == loaded.id.plain)
        state = next(shown, state)
    return schemas.ModelSummary(
        name=name,
        kind="handler" if isinstance(loaded, LoadedHandler) else "model",
        default=name == service.loaded.default_model,
        state=state.value,
        version=loaded.id.version if loaded else None,
        weights=weights_of(service.loaded.split(name)),
        release=release_state(service, name),
        shadow=shadow_state(service, name, counts),
        versions=[version_state(service, each) for each in statuses],
        problem=problem,
        modelName=name,
        modelUrl=f"{name}/{loaded.id.version}" if loaded else name,
    )


def _info(
    service: Service, name: str, loaded: Loaded | None, counts: AllCounts
) -> schemas.ModelInfo:
    known = dict(_summary(service, name, loaded, counts))
    known["limits"] = schemas.RequestSize(
        items=service.limits.max_items, body_bytes=service.limits.max_body_bytes
    )
    if loaded is None:
        return schemas.ModelInfo(**known)
    if isinstance(loaded, LoadedHandler):
        handler = loaded.manifest
        return schemas.ModelInfo(
            **known,
            description=handler.description,
            media_types=list(handler.media_types),
            calls=[str(each) for each in handler.models],
            request_schema=handler.request_schema,
            streams=handler.streams,
            inputs=list(handler.inputs),
            outputs=list(handler.outputs),
        )
    manifest = loaded.manifest
    return schemas.ModelInfo(
        **known,
        description=manifest.description,
        precision=loaded.selection.precision,
        codec=manifest.codec.kind,
        media_types=[JSON, *loaded.codec.media_types],
        inputs=list(manifest.inputs),
        outputs=list(manifest.shown_outputs),
        labels=None if manifest.codec.labels is None else list(manifest.codec.labels),
        example=manifest.example,
    )


def _details(
    service: Service, name: str, loaded: Loaded | None, counts: AllCounts
) -> schemas.ModelDetails:
    if isinstance(loaded, LoadedHandler):
        return schemas.ModelDetails(
            **dict(_info(service, name, loaded, counts)),
            variant=None,
            signed_by=loaded.signed_by,
            settings=None,
            replicas=[],
            manifest=loaded.manifest.public(),
        )
    replicas = service.lifecycle.replica_states(loaded.id if loaded else None)
    return schemas.ModelDetails(
        **dict(_info(service, name, loaded, counts)),
        variant=loaded.selection.variant if loaded else None,
        signed_by=loaded.signed_by if loaded else None,
        settings=_settings(loaded, required=name in service.lifecycle.requirements)
        if loaded
        else None,
        replicas=[_replica_info(each) for each in replicas],
        manifest=loaded.manifest.public() if loaded else None,
    )


def _settings(model: LoadedModel, *, required: bool) -> schemas.ModelSettings:
    settings = model.settings
    devices = settings.devices
    return schemas.ModelSettings(
        max_batch_size=model.max_batch_size,
        batch_wait_ms=settings.batch_wait_s * 1000,
        queue_limit_items=settings.queue_limit_items,
        queue_limit_bytes=settings.queue_limit_bytes,
        timeout_ms=settings.timeout_s * 1000,
        devices=None if devices is None else list(devices),
        replicas=settings.replicas,
        variant=settings.variant,
        precision=settings.precision,
        cache=settings.cache,
        restricted=settings.allowed_keys is not None,
        required=required,
    )


def _replica_info(status: ReplicaStatus) -> schemas.ReplicaInfo:
    serving = status.serving
    return schemas.ReplicaInfo(
        name=status.name,
        device=str(status.device),
        state=status.state,
        plan=serving
        and schemas.ServedPlan(
            steps=[schemas.ServedStep(up_to=s.up_to, form=s.form) for s in serving.steps],
            measured_on=serving.measured_on,
            measured_by=serving.measured_by,
            median_us={form: dict(times) for form, times in serving.median_us.items()},
        ),
    )
