"""GET /info: a text model as text-embeddings-inference describes the one that it serves."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRouter
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from app.api.access import Reader
from app.api.openapi.errors import errors_of
from app.api.queries import NoQuery
from app.api.service import Service
from app.api.text.body import task_of, unnamed
from app.api.text.openapi import TEI_ERROR
from app.errors import ModelNotFound
from app.registry.loaded_models import LoadedModel, list_names
from models.choices import TextTask
from models.codec_specs import TextCodecSpec

ERRORS = errors_of(TEI_ERROR)
# The protocol's kind of a model of each task that it has.
KINDS: dict[TextTask, str] = {"embed": "embedding", "classify": "classifier", "rerank": "reranker"}


class Info(TypedDict):
    """The text model that calls without a model use, and the server's limits."""

    model_id: str
    model_sha: str
    model_dtype: str
    model_type: dict[str, Any]
    max_input_length: int
    max_batch_requests: int
    max_client_batch_size: int
    auto_truncate: bool
    version: str


def add_info(app: FastAPI, service: Service) -> None:
    """Add the call to the application."""
    router = APIRouter(tags=["models"], dependencies=[Reader, NoQuery], responses=ERRORS[400])

    @router.get("/info", operation_id="info", responses={**ERRORS[404], **ERRORS[503]})
    async def info() -> Info:
        """The text model that calls without a model use."""
        model = _described(service)
        codec = model.manifest.codec
        if not isinstance(codec, TextCodecSpec):
            raise TypeError("bug: a text model without a text codec")
        labels = codec.labels or ()
        kind: dict[str, Any] = {}  # without TEI's pooling, which is a part of the exported model
        if codec.task != "embed":
            kind = {
                "id2label": {str(index): label for index, label in enumerate(labels)},
                "label2id": {label: index for index, label in enumerate(labels)},
            }
        return {
            "model_id": model.id.name,
            "model_sha": model.digest,
            "model_dtype": model.selection.precision,
            "model_type": {KINDS[codec.task]: kind},
            "max_input_length": codec.max_tokens,
            "max_batch_requests": model.max_batch_size,
            "max_client_batch_size": service.limits.max_items,
            "auto_truncate": True,
            "version": app.version,
        }

    app.include_router(router)


def _described(service: Service) -> LoadedModel:
    """The model to describe.

    Raises:
        ModelNotFound: if no text model is loaded, or several with the same task are and none is
            the default.
    """
    name = unnamed(service.loaded, tuple(KINDS))
    model = service.loaded.resolve(name)
    if task_of(model) not in KINDS:
        raise ModelNotFound(
            "this call describes the text model that calls without a model use, and there is none; "
            f"there are: {list_names(service.loaded.names)}"
        )
    return model
