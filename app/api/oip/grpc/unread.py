"""Answers that their clients have not read yet: limited for each connection, and in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from app.api.answers import LARGE_BYTES, AnswerMemory
from app.api.memory import AGAIN_S
from app.api.oip.grpc.peers import YOUNG_S, Peer, Peers, when_ended
from app.api.oip.grpc.reading import Context
from app.errors import Abandoned, Overloaded

LOOK_S = 1.0
PATIENCE_S, SHORT_PATIENCE_S = 60.0, 10.0  # to read an answer; the second while memory is short
BYTES_PER_S = 1 << 20  # gRPC does not tell how much a client has read, so large ones get more time
MOST_UNREAD = 256  # answers of a connection; far less than all calls of all connections


class UnreadAnswers:
    """The answers that were given to gRPC; used on the event loop.

    Args:
        memory: the memory of all answers.
        peers: the connections.
        cut: called for each answer whose client did not read it in time.
    """

    def __init__(self, memory: AnswerMemory, peers: Peers, cut: Callable[[], None]) -> None:
        self._memory = memory
        self._peers = peers
        self._cut = cut
        self._open: dict[_Answer, None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def give(self, context: Context, size: int, read: Callable[[], None] | None = None) -> None:
        """Watch an answer of `size` bytes; then call `read`, once it is read or ended.

        A small answer does not count as memory, so for it `read` is called at once. Called in the
        call's own task, just before it returns the answer.

        Raises:
            Overloaded: if the connection has too many unread answers; `read` is not called then.
        """
        peer = self._peers.of(context)
        held = size if size > LARGE_BYTES else 0
        now = time.monotonic()
        self._check(peer, held, now)
        if read is not None and not held:
            read()
            read = None
        answer = _Answer(now, size)
        self._open[answer] = None
        peer.unread[answer] = now
        peer.unread_bytes += held

        def ended() -> None:
            del self._open[answer], peer.unread[answer]
            peer.unread_bytes -= held
            if read is not None:
                read()

        when_ended(ended)
        if self._timer is None:
            self._timer = self._loop.call_later(LOOK_S, self._look)

    async def write(self, context: Context, message: bytes) -> None:
        """Write one of several answers of a call.

        Raises:
            Abandoned: if its client does not read it in time; the call must be ended.
        """
        peer, answer = self._peers.of(context), object()
        peer.unread[answer] = time.monotonic()
        try:
            async with asyncio.timeout(self._patience_s + len(message) / BYTES_PER_S):
                await context.write(message)
        except TimeoutError:
            self._cut()
            raise Abandoned("the client does not read its answers") from None
        finally:
            del peer.unread[answer]

    @property
    def _patience_s(self) -> float:
        return SHORT_PATIENCE_S if self._memory.is_short else PATIENCE_S

    def _check(self, peer: Peer, size: int, now: float) -> None:
        unread = peer.unread
        if len(unread) >= MOST_UNREAD and now - next(iter(unread.values())) >= YOUNG_S:
            raise Overloaded(
                f"this connection has {len(unread)} answers that were not read, the limit is "
                f"{MOST_UNREAD}; read answers before you ask for more",
                retry_after_s=AGAIN_S,
            )
        limit = self._memory.limit // 2
        if size and peer.unread_bytes and peer.unread_bytes + size > limit:
            raise Overloaded(
                f"this connection has {peer.unread_bytes} bytes of answers that were not read, the "
                f"limit is {limit}, and this one has {size}; read answers before you ask for more",
                retry_after_s=AGAIN_S,
            )

    def _look(self) -> None:
        """End calls whose answers have not been read in time; one timer for all."""
        self._timer = None
        late = time.monotonic() - self._patience_s
        for answer in self._open:
            if answer.given_s > late:
                break  # those that follow were given later
            if answer.given_s + answer.size / BYTES_PER_S <= late and not answer.is_cut:
                answer.is_cut = True
                self._cut()
                answer.cancel()
        if self._open:
            self._timer = self._loop.call_later(LOOK_S, self._look)


class _Answer:
    """An answer of the current task's call."""

    __slots__ = ("_task", "given_s", "is_cut", "size")

    def __init__(self, given_s: float, size: int) -> None:
        self.given_s = given_s
        self.size = size
        self.is_cut = False
        self._task = asyncio.current_task()

    def cancel(self) -> None:
        """End the call."""
        if self._task is not None:
            self._task.cancel()
