"""grpcio's server, hardened for untrusted clients; the only module that knows its internals.

`grpc.aio` decodes the path of every unknown call as UTF-8, and nothing catches an error there: one
request with other bytes in its path would end the server for all clients. So each method is
registered with gRPC's core here, and all other calls are answered without reading their path. It is
also faster: a call needs two tasks fewer. pyproject.toml pins grpcio to the version for which this
was written.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import grpc
from grpc._cython import cygrpc  # type: ignore[attr-defined]

from app.api.oip.grpc.peers import ENDED, Peers
from app.api.oip.grpc.statuses import Refusal, ended
from app.errors import Overloaded

UNKNOWN = Refusal(
    404,
    "not_found",
    grpc.StatusCode.UNIMPLEMENTED,
    "there is no such call; the server's reflection lists all calls",
    (),
)
TOO_MANY = Refusal(
    503,
    Overloaded.code,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    "too many calls are open; try again later",
    (),
)
ACCEPTORS = 16  # of the busiest method: with one, a call costs twice as much, and batches are small
OTHER_ACCEPTORS = 4  # of each other method
ENDING_CALLS = 1024  # above the maximum, while the calls of a connection are ending
Options = Sequence[tuple[str, int | str]]


class Calls(NamedTuple):
    """Callbacks for the events of calls.

    Attributes:
        peers: the connections, of which one ends if there are too many calls.
        began: called when a call begins, even if it is refused.
        refused: called for each call that gets no handler.
    """

    peers: Peers
    began: Callable[[], None]
    refused: Callable[[Refusal], None]


class AioServer(cygrpc.AioServer):  # type: ignore[misc]  # untyped
    """A server of registered methods, on the running event loop.

    Args:
        options: options of gRPC's core.
        methods: handlers by their paths.
        busiest: the path of the most frequent call.
        most: maximum number of concurrent calls.
        told: what is told of calls.

    Attributes:
        calls: the calls that have not ended.
    """

    def __init__(
        self,
        options: Options,
        methods: Mapping[str, grpc.RpcMethodHandler[Any, Any]],
        busiest: str,
        most: int,
        told: Calls,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        super().__init__(self.loop, None, (), (), tuple(options), None)
        logging.getLogger(cygrpc.__name__).addFilter(_is_news)
        self._methods = {path.encode(): handler for path, handler in methods.items()}
        self._busiest = busiest.encode()
        self._most = most
        self._told = told
        self.calls: set[asyncio.Task[None]] = set()
        self.add_registered_method_handlers(dict(methods))

    def _make_request_call_future(self, path: bytes | None) -> asyncio.Task[None]:
        """The future from which grpcio expects the next call; here it never returns one."""
        return self.loop.create_task(self._serve(path))

    async def _serve(self, path: bytes | None) -> None:
        """Handle a method's calls: per turn of the loop, as many as it has acceptors."""
        if path is None:
            await asyncio.gather(*(self._refuse() for _ in range(OTHER_ACCEPTORS)))
            return
        acceptors = ACCEPTORS if path == self._busiest else OTHER_ACCEPTORS
        await asyncio.gather(*(self._accept(path) for _ in range(acceptors)))

    async def _accept(self, path: bytes) -> None:
        handler, name = self._methods[path], path.decode()
        handle = (
            cygrpc._handle_stream_stream_rpc
            if handler.response_streaming
            else cygrpc._handle_stream_unary_rpc
        )
        while True:
            state = await self._request_registered_call(path)
            self._told.began()
            if len(self.calls) >= self._most and not self._has_room():
                self._start(self._end(state, TOO_MANY))
                continue
            work = handle(handler, state, self.loop)
            self._start(cygrpc._schedule_rpc_coro(work, state, self.loop, name))

    def _has_room(self) -> bool:
        """Whether another call may begin, because those of a connection are ending."""
        return self._told.peers.make_room() and len(self.calls) < self._most + ENDING_CALLS

    async def _refuse(self) -> None:
        """Answer the calls of unknown methods."""
        while True:
            state = await self._request_call()
            self._told.began()
            self._start(self._end(state, UNKNOWN))

    async def _end(self, state: Any, refusal: Refusal) -> None:
        context = cygrpc._ServicerContext(state, None, None, self.loop)
        self._told.refused(refusal)
        with self._told.peers.refusing(context):
            await ended(context, refusal.code, refusal.details)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        acts, context = ExitStack(), contextvars.copy_context()
        context.run(ENDED.set, acts)
        task = self.loop.create_task(work, context=context)
        self.calls.add(task)

        def end(task: asyncio.Task[None]) -> None:
            self.calls.discard(task)
            acts.close()

        task.add_done_callback(end)


def _is_news(record: logging.LogRecord) -> bool:
    """Whether a line of grpcio is logged: not for each answer whose client has disconnected."""
    return "ExecuteBatchError" not in record.getMessage()
