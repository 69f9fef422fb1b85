"""The gRPC server: its methods and limits, and how it starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

# Otherwise gRPC's core would log a line for every malformed request.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import structlog
from grpc.aio import AbortError
from grpc_reflection.v1alpha import reflection_pb2

from app.api.memory import BodyMemory
from app.api.oip.grpc.adapter import AioServer, Calls, Options
from app.api.oip.grpc.call import ROUTE, STREAM_ROUTE
from app.api.oip.grpc.infer import Infer
from app.api.oip.grpc.peers import Peers
from app.api.oip.grpc.protos import inference_pb2
from app.api.oip.grpc.reading import MessageReader
from app.api.oip.grpc.relay import Events, Relay, most_connections
from app.api.oip.grpc.service import Described, Inference
from app.api.oip.grpc.statuses import Refusal
from app.api.oip.grpc.stream_infer import StreamInfer
from app.api.oip.grpc.streams import HEALTH, REFLECTION, WATCH, Health, Reflection, Streams
from app.api.oip.grpc.unary import Parts
from app.api.oip.grpc.unread import UnreadAnswers
from app.api.origins import Hosts
from app.api.ports import listening
from app.api.request_ids import RequestIds
from app.api.service import Service
from app.telemetry.tracing import RequestTrace

LOG = structlog.get_logger(__name__)
INFERENCE = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].full_name
MAX_CALLS = 4096  # concurrent calls of all clients
MAX_CALLS_OF_CONNECTION = 1024
MAX_METADATA_BYTES = 16 << 10  # of a call
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 60, 20  # a lost client is detected after both
MIN_PING_S = 10  # a client that pings more often without a call is disconnected
MAX_IDLE_S = 600  # without a call; the client reconnects automatically
FAREWELL_S = 0.5
# Codes of connections that the server closes; the first two also over HTTP.
UNREAD, IDLE, CONNECTIONS_LIMIT = "answer_unread", "idle", "connections_limit"


@dataclass(frozen=True, slots=True)
class Listen:
    """Where connections come from.

    Attributes:
        host: an address or a name.
        port: 0 for any port.
        backlog_bytes: limit of unfinished messages.
        is_free: whether a connection may take a descriptor, by any open one.
        closed: called for each connection that was closed, if the parent process listens and hands
            connections over; None: this process listens.
    """

    host: str
    port: int
    backlog_bytes: int
    is_free: Callable[[int], bool]
    closed: Callable[[], None] | None = None


class GrpcServer:
    """Serves the protocol over gRPC, with the same components as over HTTP.

    Args:
        service: engine, models and limits.
        version: the server's version.
        listen: where connections come from.
    """

    def __init__(self, service: Service, version: str, listen: Listen) -> None:
        # Browsers cannot call it, so no page can point its own host name here.
        self._service = replace(service, hosts=Hosts(["*"]))
        self._version = version
        self._listen = listen
        self._reader = MessageReader(service.limits, BodyMemory(listen.backlog_bytes))
        self._peers = Peers(self._cut(UNREAD))
        self._ids = RequestIds()
        self._streams = Streams(self._reader, self._peers, self._ids, service.access_log)
        self._bound: socket.socket | None = None
        self._relay: Relay | None = None
        self._server: AioServer | None = None

    def bind(self) -> None:
        """Take the port, unless the parent process has it.

        Raises:
            OSError: if it is in use.
        """
        if self._listen.closed is None and self._bound is None:
            self._bound = listening(self._listen.host, self._listen.port)

    async def start(self) -> None:
        """Answer.

        Raises:
            OSError: if the port is in use, or gRPC's core cannot listen.
        """
        self.bind()
        events = Events(
            self._listen.closed or (lambda: None), self._cut(IDLE), self._cut(CONNECTIONS_LIMIT)
        )
        relay = Relay(most_connections(), self._peers, self._listen.is_free, events)
        methods, begun = self._methods(), relay.turns.begun
        calls = Calls(self._peers, begun, self._log_refused)
        server = AioServer(self._options(), methods, ROUTE, MAX_CALLS, calls)
        relay.core = _listen_for_relay(server)
        await server.start()
        self._server, self._relay = server, relay
        if self._bound is not None:
            address, port = self._bound.getsockname()[:2]
            LOG.info("grpc_listens", address=address, port=port)
            relay.listen(self._bound)

    def take(self, connection: socket.socket) -> None:
        """Serve a connection that the parent process has accepted."""
        if self._relay is not None:
            self._relay.take(connection)
            return
        connection.close()  # stopped
        if self._listen.closed is not None:
            self._listen.closed()

    async def close(self, budget_s: float) -> None:
        """Accept no more calls; end the calls that are not answered within the budget."""
        server, self._server = self._server, None
        relay, self._relay = self._relay, None
        if server is None or relay is None:
            return
        self._reader.close()
        self._streams.close()
        # The shutdown is neither cancelled nor repeated: grpcio would fail if its calls were being
        # ended, and crash if two shutdowns ended at once.
        stopping = asyncio.create_task(_shut_down(server, relay, budget_s))
        try:
            while server.calls and not stopping.done():  # noqa: ASYNC110  # grpcio has no event
                await asyncio.sleep(0.01)
            # Idle clients have a moment to disconnect.
            await asyncio.wait((stopping,), timeout=min(FAREWELL_S, budget_s))
        finally:
            relay.close()
        await asyncio.wait((stopping,))
        if error := stopping.exception():
            LOG.error("grpc_not_closed", exc_info=error)

    def _cut(self, code: str) -> Callable[[], None]:
        return self._service.metrics.connections_cut.labels(code).inc

    def _methods(self) -> dict[str, grpc.RpcMethodHandler[Any, Any]]:
        service, reader = self._service, self._reader
        unread = UnreadAnswers(service.answers, self._peers, self._cut(UNREAD))
        parts = Parts(service, reader, self._ids, unread)
        health = Health(service.lifecycle, (INFERENCE, HEALTH), self._streams, reader)
        methods = Inference(service, self._version).methods
        unary = {f"/{INFERENCE}/{name}": method for name, method in methods.items()}
        unary[f"/{HEALTH}/Check"] = health.check
        made = {
            path: self._handler(Described(path, method, parts).__call__)
            for path, method in unary.items()
        }
        reflection = Reflection((INFERENCE, HEALTH), self._streams)
        return made | {
            ROUTE: self._handler(Infer(parts).__call__),
            STREAM_ROUTE: self._handler(
                StreamInfer(parts).serve, grpc.stream_stream_rpc_method_handler
            ),
            WATCH: grpc.stream_stream_rpc_method_handler(health.watch),
            REFLECTION: grpc.stream_stream_rpc_method_handler(
                reflection.__call__,
                reflection_pb2.ServerReflectionRequest.FromString,
                reflection_pb2.ServerReflectionResponse.SerializeToString,
            ),
        }

    def _log_refused(self, refusal: Refusal) -> None:
        """Log a call that got no handler, and whose metadata was not read."""
        access_log = self._service.access_log
        if access_log.wants(refusal.status, 0.0):
            now = time.perf_counter()
            record = RequestTrace("", "", "", self._ids.of({}), now)
            record.rpc_status = refusal.code.name
            record.end(now, refusal.status, refusal.outcome)
            access_log.write(record, {})

    def _handler(
        self,
        answer: Callable[[object, Any], Awaitable[bytes | None]],
        register: Callable[[Any], grpc.RpcMethodHandler[Any, Any]] = (
            grpc.stream_unary_rpc_method_handler
        ),
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """A call whose messages and answers are bytes.

        Args:
            answer: answers it; it returns the answer, or has written several.
            register: by default for one message and one answer, yet as a call with several
                messages, which begins before its message has arrived.
        """
        begun = self._peers.begun

        async def serve(message: object, context: Any) -> bytes | None:
            begun(context)
            try:
                return await answer(message, context)
            except AbortError as error:
                aborted = error
            # The core's call keeps the error, whose frames keep the call: a flood of rejected calls
            # would be freed all at once, by the garbage collector.
            del message, context
            aborted.__context__ = None
            try:
                raise aborted.with_traceback(None)
            finally:
                del aborted

        return register(serve)

    def _options(self) -> Options:
        limits = self._service.limits
        return (
            ("grpc.max_receive_message_length", limits.max_body_bytes),  # also when inflated
            ("grpc.max_send_message_length", -1),  # answers have their own limit
            ("grpc.max_concurrent_streams", MAX_CALLS_OF_CONNECTION),
            ("grpc.max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
            ("grpc.server_handshake_timeout_ms", round(limits.head_timeout_s * 1000)),
            ("grpc.max_connection_idle_ms", MAX_IDLE_S * 1000),
            ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
            ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_ping_interval_without_data_ms", MIN_PING_S * 1000),
        )


async def _shut_down(server: AioServer, relay: Relay, budget_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(min(FAREWELL_S, budget_s)):
            await relay.stop_listening()
    await server.shutdown(budget_s)


def _listen_for_relay(server: AioServer) -> str | tuple[str, int]:
    """Let the core listen for the relay alone; returns the address.

    On Linux it is an abstract Unix socket with a random name, which needs no folder.

    Raises:
        OSError: if the core cannot listen.
    """
    name = f"torchlane-{secrets.token_hex(16)}"
    on_linux = sys.platform == "linux"
    target = f"unix-abstract:{name}" if on_linux else "127.0.0.1:0"
    port: int = server.add_insecure_port(target.encode())
    if not port:
        raise OSError(f"gRPC cannot listen on {target}")
    return f"\0{name}" if on_linux else ("127.0.0.1", port)
