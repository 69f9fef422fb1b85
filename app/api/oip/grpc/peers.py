"""What the calls of each gRPC connection hold, and which connection ends if that is too much."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar

from app.api.oip.grpc.reading import Context
from models.timing import nothing

YOUNG_S = 0.25  # an answer is not unread before: the network or the event loop was busy
ENDING_S = 1.0  # for the calls of a connection that was ended, until another one is ended
# What is called when the current call has ended. With `ServicerContext.add_done_callback`, each
# call would refer to itself: only the garbage collector could free it, thousands at once.
ENDED: ContextVar[ExitStack] = ContextVar("ended")


def when_ended(act: Callable[[], None]) -> None:
    """Have this called when the current call has ended: its answer was read, or never will be."""
    ENDED.get().callback(act)


class Peer:
    """A client's connection, as its calls know it.

    Args:
        name: the core's name of it.
        end: ends the connection at once.
        now: time when it began, on the monotonic clock.

    Attributes:
        name: see above.
        calls: number of open calls.
        streams: how many of them are streams of health and reflection.
        idle_since: when its last call ended, or it began.
        stalled_since: since when the client has read nothing; None if it reads.
        unread: answers that it has not read, each with the time when it was given; in that order.
        unread_bytes: size of those that are large.
    """

    __slots__ = (
        "calls",
        "end",
        "idle_since",
        "name",
        "stalled_since",
        "streams",
        "unread",
        "unread_bytes",
    )

    def __init__(self, name: str, end: Callable[[], None], now: float) -> None:
        self.name = name
        self.end = end
        self.calls = self.streams = self.unread_bytes = 0
        self.idle_since = now
        self.stalled_since: float | None = None
        self.unread: dict[object, float] = {}

    def unread_calls(self, now: float) -> int:
        """Number of its calls that would end if the client read."""
        if self.stalled_since is not None and now - self.stalled_since >= YOUNG_S:
            return self.calls
        oldest = next(iter(self.unread.values()), now)
        return len(self.unread) if now - oldest >= YOUNG_S else 0


class Peers:
    """The connections by the names that gRPC's core has for them; used on the event loop.

    Args:
        cut: called when a connection is ended because of its unread answers.
    """

    def __init__(self, cut: Callable[[], None]) -> None:
        self._cut = cut
        self._known: dict[str, Peer] = {}
        self._ending: tuple[Peer, float] | None = None

    def add(self, name: str, end: Callable[[], None]) -> Peer:
        """A new connection, which `end` ends."""
        peer = self._known[name] = Peer(name, end, time.monotonic())
        return peer

    def remove(self, peer: Peer) -> None:
        """The connection is closed; another one may have its name already."""
        if self._known.get(peer.name) is peer:
            del self._known[peer.name]

    def of(self, context: Context) -> Peer:
        """The connection of a call; if it is closed already, one without other calls."""
        return self._known.get(context.peer()) or Peer("", nothing, time.monotonic())

    def begun(self, context: Context) -> None:
        """Count the current call until it has ended."""
        peer = self.of(context)
        peer.calls += 1

        def ended() -> None:
            peer.calls -= 1
            peer.idle_since = time.monotonic()

        when_ended(ended)

    @contextmanager
    def refusing(self, context: Context) -> Iterator[None]:
        """Count a call that gets no handler."""
        peer = self.of(context)
        peer.calls += 1
        try:
            yield
        finally:
            peer.calls -= 1
            peer.idle_since = time.monotonic()

    def make_room(self) -> bool:
        """End the connection with the most unread answers; returns whether calls are ending."""
        now = time.monotonic()
        if self._ending is not None:
            ending, since = self._ending
            if now - since < (ENDING_S if ending.calls else YOUNG_S):
                return True
        most = max(self._known.values(), key=lambda each: each.unread_calls(now), default=None)
        if most is None or not most.unread_calls(now):
            return False
        self._ending = most, now
        self._cut()
        most.end()
        return True
