"""Answers that their clients have not read yet: limited for each connection, and in time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

from app.api.answers import LARGE_BYTES, AnswerMemory
from app.api.memory import AGAIN_S
from app.api.oip.grpc.reading import Context
from app.errors import Overloaded

LOOK_S = 10.0
PATIENCE = 6  # times LOOK_S, while memory is not short
BYTES_PER_S = 1 << 20  # gRPC does not tell how much a client has read, so large ones get more time


class UnreadAnswers:
    """The large answers that were given to gRPC; used on the event loop.

    Args:
        memory: the memory of all answers.
        cut: called for each answer whose client did not read it in time.
    """

    def __init__(self, memory: AnswerMemory, cut: Callable[[], None]) -> None:
        self._memory = memory
        self._cut = cut
        self._by_peer: Counter[str] = Counter()

    def give(self, context: Context, size: int, read: Callable[[], None]) -> None:
        """Watch an answer of `size` bytes; then call `read`, once it is read or ended.

        Called in the call's own task, just before it returns the answer.

        Raises:
            Overloaded: if the connection has too many unread answers; `read` is not called then.
        """
        if size <= LARGE_BYTES:
            read()
            return
        peer = context.peer()
        limit = self._memory.limit // 2
        held = self._by_peer[peer]
        if held and held + size > limit:
            raise Overloaded(
                f"this connection has {held} bytes of answers that were not read, the limit is "
                f"{limit}, and this one has {size}; read answers before you ask for more",
                retry_after_s=AGAIN_S,
            )
        self._by_peer[peer] += size
        watch = _Watch(self._memory, self._cut, size)

        def ended(_: Context) -> None:
            watch.timer.cancel()
            self._by_peer[peer] -= size
            if not self._by_peer[peer]:
                del self._by_peer[peer]
            read()

        context.add_done_callback(ended)  # type: ignore[arg-type]  # the stub wants a class


class _Watch:
    """Ends the current task's call if its answer stays unread."""

    def __init__(self, memory: AnswerMemory, cut: Callable[[], None], size: int) -> None:
        self._memory = memory
        self._cut = cut
        self._more_s = size / BYTES_PER_S
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._waited_s = 0.0
        self.timer = self._loop.call_later(LOOK_S, self._look)

    def _look(self) -> None:
        self._waited_s += LOOK_S
        patience = 1 if self._memory.is_short else PATIENCE
        if self._waited_s < patience * LOOK_S + self._more_s:
            self.timer = self._loop.call_later(LOOK_S, self._look)
        elif self._task is not None:
            self._cut()
            self._task.cancel()
