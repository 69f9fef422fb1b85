"""The standard services of gRPC: health (grpc.health.v1) and reflection."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Sequence

from google.protobuf.message import DecodeError
from grpc.aio import AbortError, BaseError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from app.api.oip.grpc.peers import Peers
from app.api.oip.grpc.reading import Context, MessageReader, Rejected
from app.api.oip.grpc.service import Method
from app.api.oip.grpc.statuses import refusal_of
from app.api.oip.grpc.unary import fields_of
from app.api.request_ids import RequestIds
from app.errors import Abandoned, DeadlineExceeded, ModelNotFound, Overloaded, ShuttingDown
from app.serving.lifecycle import Lifecycle
from app.telemetry.access_log import AccessLog
from app.telemetry.tracing import CLIENT_GONE, RequestTrace

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
WATCH = f"/{HEALTH}/Watch"
_REFLECTED = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"].full_name
REFLECTION = f"/{_REFLECTED}/ServerReflectionInfo"
LOOK_S = 0.25  # between two checks of readiness, for each Watch
MAX_STREAMS = 256
MAX_STREAMS_OF_CONNECTION = 8
REFLECTION_S = 60.0
AGAIN_S = 10.0
UNKNOWN: int = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
SERVING: int = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING: int = health_pb2.HealthCheckResponse.NOT_SERVING


class Streams:
    """The open streams, which would otherwise stay until their clients disconnect.

    Args:
        reader: reads messages.
        peers: the connections.
        ids: request ids of the process.
        access_log: gets each stream when it ends.
    """

    def __init__(
        self, reader: MessageReader, peers: Peers, ids: RequestIds, access_log: AccessLog
    ) -> None:
        self._reader = reader
        self._peers = peers
        self._ids = ids
        self._access_log = access_log
        self._open: dict[Context, RequestTrace] = {}

    @contextlib.contextmanager
    def opened(self, context: Context, route: str) -> Iterator[RequestTrace]:
        """Count a stream, or end it if there are too many; its record may get an error."""
        fields = fields_of(context)
        record = RequestTrace("", route, route, self._ids.of(fields), time.perf_counter())
        self._open[context] = record
        status, outcome, record.rpc_status = 500, "internal", "UNKNOWN"  # of a bug
        try:
            with self._counted(context):
                yield record
            status, outcome, record.rpc_status = 200, "ok", "OK"
        except (asyncio.CancelledError, BaseError, GeneratorExit):
            status, outcome = CLIENT_GONE, Abandoned.code
            raise
        finally:
            del self._open[context]
            if isinstance(record.error, Exception):
                refusal = refusal_of(record.error, "", record)
                status, outcome = refusal.status, refusal.outcome
            if self._access_log.wants(status, 0.0):
                record.end(time.perf_counter(), status, outcome)
                self._access_log.write(record, fields)
            record.error = None  # its frames hold the record

    @contextlib.contextmanager
    def _counted(self, context: Context) -> Iterator[None]:
        peer = self._peers.of(context)
        self._peers.begun(context)
        if peer.streams >= MAX_STREAMS_OF_CONNECTION:
            self._refuse(
                context,
                f"{peer.streams} streams of health and reflection are open on this connection, "
                f"the limit is {MAX_STREAMS_OF_CONNECTION}; close one",
            )
        elif len(self._open) > MAX_STREAMS:
            self._refuse(
                context, f"{MAX_STREAMS} streams of health and reflection are open; try again later"
            )
        peer.streams += 1
        try:
            yield
        finally:
            peer.streams -= 1

    def _refuse(self, context: Context, many: str) -> None:
        self.end(context, Overloaded(many, retry_after_s=AGAIN_S))

    def end(self, context: Context, error: Overloaded | DeadlineExceeded | ShuttingDown) -> None:
        if context in self._open:
            self._open[context].error = error
        self._reader.abort(context, error, "")

    def close(self) -> None:
        """End all streams, because the server stops."""
        for context in list(self._open):
            self.end(context, ShuttingDown("the server is shutting down; try another server"))


class Health:
    """Whether the server is ready, for probes and balancers.

    Args:
        lifecycle: knows whether it is ready.
        services: the known services; the empty name is the whole server.
        streams: the open streams.
        reader: reads messages.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        services: Sequence[str],
        streams: Streams,
        reader: MessageReader,
    ) -> None:
        self._lifecycle = lifecycle
        self._services = {"", *services}
        self._streams = streams
        self._reader = reader
        self.check = Method(health_pb2.HealthCheckRequest, self._check, None)

    async def _check(
        self, request: health_pb2.HealthCheckRequest
    ) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status == UNKNOWN:
            raise ModelNotFound("there is no such service; an empty name means the whole server")
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(self, _: object, context: Context) -> None:
        """Send the status now and whenever it changes."""
        with self._streams.opened(context, WATCH) as record:
            try:
                message = await self._reader.read(context, "")
            except Rejected as rejected:
                record.error = rejected.error
                raise AbortError from None
            record.bytes_in = len(message)
            try:
                service = health_pb2.HealthCheckRequest.FromString(message).service
            except DecodeError:
                service = message.hex()  # unknown
            told: int | None = None
            while True:
                status = self._status(service)
                if status != told:
                    told = status
                    answer = health_pb2.HealthCheckResponse(status=status)
                    content = answer.SerializeToString()
                    record.bytes_out += len(content)
                    await context.write(content)
                await asyncio.sleep(LOOK_S)

    def _status(self, service: str) -> int:
        if service not in self._services:
            return UNKNOWN
        return SERVING if self._lifecycle.readiness().ready else NOT_SERVING


class Reflection:
    """Describes the services to tools such as grpcurl.

    Args:
        services: the services' names.
        streams: the open streams.
    """

    def __init__(self, services: Sequence[str], streams: Streams) -> None:
        self._servicer = reflection.aio.ReflectionServicer([*services, reflection.SERVICE_NAME])
        self._streams = streams

    async def __call__(
        self,
        requests: AsyncIterator[reflection_pb2.ServerReflectionRequest],
        context: Context,
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        late = DeadlineExceeded(f"a reflection stream ends after {REFLECTION_S:.0f} s")
        timer = asyncio.get_running_loop().call_later(
            REFLECTION_S, self._streams.end, context, late
        )
        try:
            with self._streams.opened(context, REFLECTION):
                async for answer in self._servicer.ServerReflectionInfo(requests, context):
                    yield answer
        finally:
            timer.cancel()
