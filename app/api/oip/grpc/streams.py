"""The standard services of gRPC: health (grpc.health.v1) and reflection."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence

from google.protobuf.message import DecodeError
from grpc.aio import AbortError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from app.api.oip.grpc.peers import Peers
from app.api.oip.grpc.reading import Context, MessageReader, Rejected
from app.api.oip.grpc.service import Method
from app.errors import DeadlineExceeded, ModelNotFound, Overloaded, ShuttingDown
from app.serving.lifecycle import Lifecycle

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
    """

    def __init__(self, reader: MessageReader, peers: Peers) -> None:
        self._reader = reader
        self._peers = peers
        self._open: set[Context] = set()

    @contextlib.contextmanager
    def opened(self, context: Context) -> Iterator[None]:
        """Count a stream, or end it if there are too many."""
        peer = self._peers.of(context)
        self._peers.begun(context)
        if peer.streams >= MAX_STREAMS_OF_CONNECTION:
            self._refuse(
                context,
                f"{peer.streams} streams of health and reflection are open on this connection, "
                f"the limit is {MAX_STREAMS_OF_CONNECTION}; close one",
            )
        elif len(self._open) >= MAX_STREAMS:
            self._refuse(
                context, f"{MAX_STREAMS} streams of health and reflection are open; try again later"
            )
        self._open.add(context)
        peer.streams += 1
        try:
            yield
        finally:
            self._open.discard(context)
            peer.streams -= 1

    def _refuse(self, context: Context, many: str) -> None:
        self.end(context, Overloaded(many, retry_after_s=AGAIN_S))

    def end(self, context: Context, error: Overloaded | DeadlineExceeded | ShuttingDown) -> None:
        """End a stream with an error."""
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
        with self._streams.opened(context):
            try:
                message = await self._reader.read(context, "")
            except Rejected:
                raise AbortError from None
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
                    await context.write(answer.SerializeToString())
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
        """Answer a stream of requests."""
        late = DeadlineExceeded(f"a reflection stream ends after {REFLECTION_S:.0f} s")
        timer = asyncio.get_running_loop().call_later(
            REFLECTION_S, self._streams.end, context, late
        )
        try:
            with self._streams.opened(context):
                async for answer in self._servicer.ServerReflectionInfo(requests, context):
                    yield answer
        finally:
            timer.cancel()
