"""What all clients do alike: keep a connection, take answers in turn, and say what came of each."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from tests.chaos.checker import Checker
from tests.chaos.connection import ChaosAnswer, ChaosConnection, Cut, Garbled, Unanswered, connect
from tests.chaos.request import Request
from tests.chaos.streaming import tells_why
from tests.chaos.verdict import Verdict

IDLE_S = 2.0  # a connection that was idle for longer is not used again: the server may close it
KILL_S = 3.0  # within which a kill has cut all connections that it will cut
BAD_REQUEST, SERVER_LOST = 400, 502
TOO_MANY_S = 0.1  # within which an answer too many has come


@dataclass
class Interruptions:
    """What entitles the server to cut connections.

    Attributes:
        patience_s: longer than any server may take to answer.
        stopped_at: when a stop was ordered; what was sent before it is owed an answer.
        killed_at: when a worker was killed, with all its connections.
    """

    patience_s: float
    stopped_at: float | None = None
    killed_at: list[float] = field(default_factory=list)

    def told(self, sent_at: float) -> str:
        """When a request was sent, for a report."""
        now = time.monotonic()
        said = f"sent {now - sent_at:.2f} s ago"
        if self.stopped_at is not None:
            said += f", and the stop ordered {now - self.stopped_at:.2f} s ago"
        return said

    def excuse(self, sent_at: float) -> bool:
        """Whether a request sent at that time may be cut; a late reader notices a cut late."""
        if self.stopped_at is not None and sent_at >= self.stopped_at:
            return True
        now = time.monotonic()
        return any(at <= now <= at + KILL_S or sent_at <= at for at in self.killed_at)


class Conversation:
    """One client's side of what is said on its connections.

    Args:
        port: of the server.
        checker: is told what became of every request.
        interruptions: shared by all clients.
        rng: draws how a client leaves.
    """

    def __init__(
        self, port: int, checker: Checker, interruptions: Interruptions, rng: random.Random
    ) -> None:
        self._port = port
        self._checker = checker
        self._interruptions = interruptions
        self._rng = rng
        self._kept: ChaosConnection | None = None
        self._last: Request | None = None
        self._used_at = 0.0

    async def connection(self) -> ChaosConnection:
        """The one that is kept, or a new one; nothing may have come on it meanwhile."""
        kept = self._kept
        if kept is not None:
            self._checker.left_over(kept.leftover, self._last)
            if kept.is_open and time.monotonic() - self._used_at < IDLE_S:
                return kept
            kept.close()
        self._kept = await self.new()
        return self._kept

    async def new(self) -> ChaosConnection:
        """One for a single purpose."""
        return await connect(self._port)

    async def take(
        self,
        connection: ChaosConnection,
        request: Request,
        began: float,
        sent_at: float | None = None,
    ) -> bool:
        """Have the next answer judged.

        Args:
            connection: where it comes.
            request: that it answers.
            began: when it was begun to be sent.
            sent_at: when all of it was sent; None: at the same time.

        Returns:
            Whether more may come on this connection.
        """
        got = await self._answer(connection, request, began if sent_at is None else sent_at)
        if got is not None:
            self._checker.judge(request, got, began)
            self._last, self._used_at = request, time.monotonic()
            if not got.closes:
                return True
        if connection is self._kept:
            self._kept = None
            connection.close()
        return False

    async def take_the_only(
        self, connection: ChaosConnection, request: Request, began: float
    ) -> None:
        """Have an answer judged that must be the last of its connection."""
        await self.take(connection, request, began)
        await self.part(connection, request)

    async def take_if_any(
        self, connection: ChaosConnection, request: Request, began: float
    ) -> None:
        """Likewise, where the server may as well close the connection."""
        try:
            got = await connection.receive(self._interruptions.patience_s)
        except Cut:
            self._checker.left(request)
        except (Unanswered, Garbled) as error:
            self._checker.lost(request, str(error))
        else:
            if self._is_cut(got, began):
                self._checker.cut(request)
            elif got.status == BAD_REQUEST:  # a balancer says so, instead of closing it
                self._checker.left(request)
            else:
                self._checker.judge(request, got, began)
        await self.part(connection, request)

    async def take_refusal(self, connection: ChaosConnection, sent_at: float) -> ChaosAnswer | None:
        """An answer to what is no HTTP; None: there is none, for which there was a reason."""
        try:
            got = await connection.receive(self._interruptions.patience_s)
            return None if self._is_cut(got, sent_at) else got
        except (Cut, Unanswered, Garbled) as error:
            if not self._interruptions.excuse(sent_at):
                self._checker.offend(Verdict.UNEXPECTED, f"no 400: {error}", None, "none")
            return None

    def not_answered(self, request: Request, sent_at: float, why: str) -> None:
        """No answer has come, and none will."""
        if self._interruptions.excuse(sent_at):
            self._checker.cut(request)
        else:
            self._checker.lost(request, f"{why}; {self._interruptions.told(sent_at)}")

    def behind_the_last(self, request: Request, why: str) -> None:
        """It was pipelined behind a request whose answer has closed the connection."""
        if self._interruptions.stopped_at is not None or self._interruptions.killed_at:
            self._checker.cut(request)
        else:
            self._checker.lost(request, why)

    async def leave(self, connection: ChaosConnection, request: Request) -> None:
        """Go away, in this way or that."""
        await asyncio.sleep(self._rng.choice((0, 0.001, 0.005, 0.03)))
        self._checker.left(request)
        (connection.leave if self._rng.random() < 0.5 else connection.close)()

    async def part(self, connection: ChaosConnection, request: Request) -> None:
        """End a connection; nothing more may have come on it."""
        self._checker.left_over(connection.leftover, request)
        connection.leave()

    async def end(self) -> None:
        """Wait a moment for answers that nobody has asked for."""
        if self._kept is not None:
            await asyncio.sleep(TOO_MANY_S)
            self._checker.left_over(self._kept.leftover, self._last)
            self._kept.close()

    def _is_cut(self, got: ChaosAnswer, sent_at: float) -> bool:
        """Whether a balancer says that the server which had the request was killed."""
        return got.status == SERVER_LOST and self._interruptions.excuse(sent_at)

    async def _answer(
        self, connection: ChaosConnection, request: Request, sent_at: float
    ) -> ChaosAnswer | None:
        try:
            got = await connection.receive(self._interruptions.patience_s)
            if self._is_cut(got, sent_at):
                self._checker.cut(request)
            elif tells_why(request, got):
                return got
            else:
                self.not_answered(request, sent_at, f"cut after {len(got.body)} bytes of a stream")
        except (Cut, Unanswered) as error:
            self.not_answered(request, sent_at, str(error))
        except Garbled as error:
            self._checker.offend(Verdict.WRONG, str(error), request, repr(connection.leftover))
        return None
