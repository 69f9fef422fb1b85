"""The calls of the service except ModelInfer, with the same components as over REST."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from google.protobuf.json_format import ParseDict
from google.protobuf.message import DecodeError, Message

from app.access.entries import ADMIN, PREDICT
from app.api.endpoints import version_number
from app.api.oip import repository
from app.api.oip.grpc.protos import inference_pb2 as pb
from app.api.oip.grpc.reading import Context
from app.api.oip.grpc.statuses import Metadata
from app.api.oip.grpc.unary import Parts, Unary
from app.api.oip.metadata import config_of, model_metadata, server_metadata
from app.api.oip.repository import MAX_BYTES, is_ready
from app.api.oip.statistics import statistics
from app.api.service import Service
from app.errors import InvalidInput, ModelNotFound, PayloadTooLarge
from app.registry.loaded_models import LoadedModel
from app.telemetry.tracing import RequestTrace


class Method(NamedTuple):
    """A call.

    Attributes:
        request: the class of its message.
        answer: the function that answers it.
        scope: the scope that a key needs for it; None if no key is needed.
    """

    request: type[Message]
    answer: Callable[[Any], Awaitable[Message]]
    scope: str | None = PREDICT


class Described(Unary):
    """Answers a call by a `Method`; see `Unary`. Calls that need no key are probes."""

    def __init__(self, route: str, method: Method, parts: Parts) -> None:
        super().__init__(route, parts, followed=method.scope is not None)
        self._method = method

    async def answer(
        self,
        context: Context,
        fields: Mapping[bytes, bytes],
        record: RequestTrace,
    ) -> tuple[bytes, Metadata]:
        if self._method.scope is not None:
            self._parts.service.guard.admit(fields, self._method.scope)
        message = await self._parts.reader.read(context, record.request_id.decode("ascii"))
        record.bytes_in = len(message)
        request = self._parsed(message)
        record.name = getattr(request, "name", "") or getattr(request, "model_name", "")
        record.version = getattr(request, "version", "")
        answer = (await self._method.answer(request)).SerializeToString()
        self._parts.unread.give(context, len(answer))
        return answer, ()

    def _parsed(self, message: bytes) -> Message:
        if len(message) > MAX_BYTES:
            raise PayloadTooLarge(f"the message has {len(message)} bytes, the limit is {MAX_BYTES}")
        try:
            return self._method.request.FromString(message)
        except DecodeError as error:
            raise InvalidInput(f"the message is malformed: {error}") from error


class Inference:
    """The calls of inference.GRPCInferenceService by name.

    Args:
        service: engine, models and limits.
        version: the server's version.
    """

    def __init__(self, service: Service, version: str) -> None:
        self._service = service
        self._version = version
        self.methods: Mapping[str, Method] = {
            "ServerLive": Method(pb.ServerLiveRequest, self._server_live, None),
            "ServerReady": Method(pb.ServerReadyRequest, self._server_ready, None),
            "ModelReady": Method(pb.ModelReadyRequest, self._model_ready),
            "ServerMetadata": Method(pb.ServerMetadataRequest, self._server_metadata),
            "ModelMetadata": Method(pb.ModelMetadataRequest, self._model_metadata),
            "ModelConfig": Method(pb.ModelConfigRequest, self._model_config),
            "ModelStatistics": Method(pb.ModelStatisticsRequest, self._model_statistics),
            "RepositoryIndex": Method(pb.RepositoryIndexRequest, self._index),
            "RepositoryModelLoad": Method(pb.RepositoryModelLoadRequest, self._load, ADMIN),
            "RepositoryModelUnload": Method(pb.RepositoryModelUnloadRequest, self._unload, ADMIN),
        }

    async def _server_live(self, _: pb.ServerLiveRequest) -> Message:
        return pb.ServerLiveResponse(live=True)

    async def _server_ready(self, _: pb.ServerReadyRequest) -> Message:
        return pb.ServerReadyResponse(ready=self._service.lifecycle.readiness().ready)

    async def _model_ready(self, request: pb.ModelReadyRequest) -> Message:
        version = version_number(request.version or None)
        try:
            found = is_ready(self._service.lifecycle, _named(request.name), version)
        except ModelNotFound:  # clients expect an answer instead of an error
            found = False
        return pb.ModelReadyResponse(ready=found)

    async def _server_metadata(self, _: pb.ServerMetadataRequest) -> Message:
        return _filled(pb.ServerMetadataResponse(), server_metadata(self._version))

    async def _model_metadata(self, request: pb.ModelMetadataRequest) -> Message:
        version = version_number(request.version or None)
        model = self._service.loaded.tensors_of(_named(request.name), version)
        return _filled(pb.ModelMetadataResponse(), model_metadata(model, self._service.loaded))

    async def _model_config(self, request: pb.ModelConfigRequest) -> Message:
        service = self._service
        version = version_number(request.version or None)
        model = service.loaded.tensors_of(_named(request.name), version)
        config = config_of(model, service.lifecycle, service.limits.max_items)
        return _filled(pb.ModelConfigResponse(), {"config": config})

    async def _model_statistics(self, request: pb.ModelStatisticsRequest) -> Message:
        models = repository.described(self._service.loaded)
        if request.name:
            version = version_number(request.version or None)
            models = repository.versions(self._service.loaded, request.name, version)
        found = await statistics(self._service.metrics, models)
        return _filled(pb.ModelStatisticsResponse(), found)

    async def _index(self, request: pb.RepositoryIndexRequest) -> Message:
        entries = repository.index(self._service.loaded, only_ready=request.ready)
        return _filled(pb.RepositoryIndexResponse(), {"models": entries})

    async def _load(self, request: pb.RepositoryModelLoadRequest) -> Message:
        parameters = dict(request.parameters)
        await repository.load(self._service.lifecycle, _named(request.model_name), parameters)
        return pb.RepositoryModelLoadResponse()

    async def _unload(self, request: pb.RepositoryModelUnloadRequest) -> Message:
        await self._service.lifecycle.unload(_named(request.model_name))
        return pb.RepositoryModelUnloadResponse()

    def _model(self, name: str, version: str) -> LoadedModel:
        return self._service.loaded.resolve(_named(name), version_number(version or None))


def _filled(message: Message, values: Mapping[str, object]) -> Message:
    """A message with the values of a dict, whose keys are its fields."""
    return ParseDict(dict(values), message)


def _named(name: str) -> str:
    """The name that a request must have.

    Raises:
        InvalidInput: if it is empty.
    """
    if not name:
        raise InvalidInput("the model's name is missing")
    return name
