"""GET /v1/models and GET /v1/models/MODEL, of OpenAI, KServe V1 and TensorFlow Serving.

Their fields have different names, so that an answer has those of all three. Errors are OpenAI's.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.routing import APIRouter
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from app.api.access import Reader
from app.api.endpoints import version_number
from app.api.openapi.errors import errors_of
from app.api.openapi.headers import path_parameter
from app.api.queries import NoQuery
from app.api.service import Service
from app.api.text.body import split
from app.api.text.openapi import OPENAI_ERROR
from app.errors import ModelNotFound
from app.registry.loaded_models import LoadedModel

OWNER = "torchlane"
ERRORS = errors_of(OPENAI_ERROR)
ID = path_parameter("model", {"type": "string"})


class OpenAIModel(TypedDict):
    """A loaded model by its name, or one version by NAME/VERSION."""

    id: str
    object: str
    created: int
    owned_by: str


class OpenAIModels(TypedDict):
    """All loaded models; `models` has their names, as in KServe V1."""

    object: str
    data: list[OpenAIModel]
    models: list[str]


class ServedVersion(TypedDict):
    """A loaded version, as in TensorFlow Serving."""

    version: str
    state: str
    status: dict[str, str]


class ServedModel(OpenAIModel):
    """A loaded model as OpenAI, KServe V1 and TensorFlow Serving describe it."""

    name: str
    ready: bool
    model_version_status: list[ServedVersion]


def add_openai_models(app: FastAPI, service: Service) -> None:
    """Add both calls to the application."""
    router = APIRouter(
        prefix="/v1/models",
        tags=["models"],
        dependencies=[Reader, NoQuery],
        responses=ERRORS[400],
    )

    @router.get("", operation_id="v1_models")
    async def models() -> OpenAIModels:
        """The loaded models, by the names that a request's `model` may have."""
        loaded = service.loaded
        models = {name: each for name in loaded.names if (each := loaded.get(name)) is not None}
        return {
            "object": "list",
            "data": [_shown(name, each) for name, each in models.items()],
            "models": list(models),
        }

    @router.get(
        "/{model:path}",
        operation_id="v1_model",
        responses={**ERRORS[404], **ERRORS[503]},
        openapi_extra={"parameters": [ID]},
    )
    async def model(request: Request) -> ServedModel:
        """One loaded model, or one version by NAME/VERSION or NAME/versions/VERSION."""
        wanted = request.path_params["model"]
        if not wanted:
            raise ModelNotFound("name a model; GET /v1/models lists all models")
        loaded = service.loaded
        name, version = split(wanted.replace("/versions/", "/", 1))
        chosen = loaded.resolve(name, version_number(version))
        versions = loaded.versions(name) if version is None else (chosen.id,)
        ok = {"error_code": "OK", "error_message": ""}
        return {
            **_shown(wanted, chosen),
            "name": name,
            "ready": True,
            "model_version_status": [
                {"version": str(each.version), "state": "AVAILABLE", "status": ok}
                for each in versions
            ],
        }

    app.include_router(router)


def _shown(name: str, model: LoadedModel) -> OpenAIModel:
    created = int(model.manifest.created_at.timestamp())
    return {"id": name, "object": "model", "created": created, "owned_by": OWNER}
