"""Reads the only message of a call, within limits of time and memory.

gRPC keeps a message until it is complete, and reports nothing of it before. So most calls are read
without their own limit. A call whose message does not arrive at once counts as a body of the
maximum size, and only as many of these are read as fit into the limit of all bodies.
"""

from __future__ import annotations

import asyncio
from collections import deque

from grpc.aio import AbortError, BaseError, ServicerContext

from app.api.calls import BODY_CUT, BODY_LATE
from app.api.memory import BodyMemory
from app.api.offload import without_frames
from app.api.oip.grpc.statuses import ended, refusal_of
from app.api.service import RequestLimits
from app.errors import Abandoned, DeadlineExceeded, ShuttingDown, TorchlaneError

QUICK_S = 0.1  # the network bounds the data that arrives in this time
FOUND_SLOW = 32  # in one turn of the event loop; to reject a call takes 0.3 ms
Context = ServicerContext[bytes, bytes]


class Rejected(Exception):  # not an error: the client has its answer
    """The call was ended while its message was read.

    Args:
        error: the reason.
    """

    def __init__(self, error: TorchlaneError) -> None:
        super().__init__(str(error))
        self.error = error


class MessageReader:
    """Reads messages; used on the event loop.

    Args:
        limits: limits of bodies and time.
        memory: memory for slow messages.
    """

    def __init__(self, limits: RequestLimits, memory: BodyMemory) -> None:
        self.limits = limits
        self.memory = memory
        self.slow: set[_Slow] = set()
        self._aborting: set[asyncio.Task[None]] = set()
        self._young: deque[_Slow] = deque()  # in the order of their due time
        self._timer: asyncio.Handle | None = None

    async def read(self, context: Context, request_id: str) -> bytes:
        """The message.

        Raises:
            Abandoned: if there is none.
            Rejected: if it did not arrive in time, or there was no room for it.
        """
        slow = _Slow(self, context, request_id)
        try:
            message: object = await context.read()
        except AbortError:
            if slow.rejection is None:
                raise
            raise Rejected(slow.rejection) from None
        except BaseError as error:
            raise Abandoned(BODY_CUT) from error
        finally:
            slow.end()
        if not isinstance(message, bytes):  # the end of the stream
            raise Abandoned(BODY_CUT)
        return message

    def close(self) -> None:
        """Reject messages that have not arrived, because the server stops."""
        for each in list(self.slow):
            each.reject(ShuttingDown("the server stopped before the request was complete"))

    def watch(self, message: _Slow) -> None:
        """Find out whether a message is slow; one timer for all, as most have arrived by then."""
        self._young.append(message)
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(message.due, self._find_slow, loop)

    def _find_slow(self, loop: asyncio.AbstractEventLoop) -> None:
        young, now, found = self._young, loop.time(), 0
        while young and young[0].due <= now and found < FOUND_SLOW:
            message = young.popleft()
            if not message.has_ended:
                found += 1
                message.is_slow()
        self._timer = None
        if young:
            self._timer = loop.call_at(max(now, young[0].due), self._find_slow, loop)

    def abort(self, context: Context, error: TorchlaneError, request_id: str) -> None:
        """End a call from outside its own task; harmless if it has ended."""
        if context.done():
            return
        task = asyncio.get_running_loop().create_task(_abort(context, error, request_id))
        self._aborting.add(task)
        task.add_done_callback(self._aborting.discard)


class _Slow:
    """Watches the message of one call.

    Attributes:
        due: when it is slow, on the event loop's clock.
        has_ended: whether it has arrived, or will not arrive.
        rejection: the error that ended the call, if any.
    """

    __slots__ = (
        "_context",
        "_held",
        "_reader",
        "_request_id",
        "_timer",
        "due",
        "has_ended",
        "rejection",
    )

    def __init__(self, reader: MessageReader, context: Context, request_id: str) -> None:
        self._reader = reader
        self._context = context
        self._request_id = request_id
        self._held = 0
        self.rejection: TorchlaneError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.due = asyncio.get_running_loop().time() + QUICK_S
        self.has_ended = False
        reader.watch(self)

    def end(self) -> None:
        """The message has arrived, or will not arrive."""
        self.has_ended = True
        if self._timer is not None:
            self._timer.cancel()
        if self._held:
            self._reader.memory.give_back(self._held)
            self._held = 0
        self._reader.slow.discard(self)

    def reject(self, error: TorchlaneError) -> None:
        """End the call."""
        if self.rejection is None:
            self.rejection = error
            self._reader.abort(self._context, error, self._request_id)

    def is_slow(self) -> None:
        """Hold memory for it, or end the call."""
        limits = self._reader.limits
        self._reader.slow.add(self)
        try:
            self._held = self._reader.memory.hold(limits.max_body_bytes, 0)
        except TorchlaneError as error:
            self.reject(without_frames(error))  # else it would refer to itself
            return
        left_s = max(0.0, limits.timeout_s - QUICK_S)
        late = DeadlineExceeded(BODY_LATE)
        self._timer = asyncio.get_running_loop().call_later(left_s, self.reject, late)


async def _abort(context: Context, error: TorchlaneError, request_id: str) -> None:
    refusal = refusal_of(error, request_id)
    await ended(context, refusal.code, refusal.details, refusal.metadata)
