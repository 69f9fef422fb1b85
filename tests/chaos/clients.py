"""Clients of every kind: they ask in order, in pieces, in haste, many at once, or leave midway."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

from tests.chaos.asking_handler import HandlerAsker
from tests.chaos.by_grpc import GrpcConversation
from tests.chaos.checker import Checker
from tests.chaos.connection import ChaosConnection, Cut, Unanswered
from tests.chaos.conversation import Conversation, Interruptions
from tests.chaos.request import Request
from tests.chaos.truth import STREAMER
from tests.chaos.verdict import Verdict

STALL_MS = 150
CLOSES_S = 2.0  # within which a server has ended a connection that it said it would end
AHEAD_PAUSE_S = 3.0  # at most, between two floods of a client
DEAF_S = (0.0, 0.1, 0.5, 1.5)  # for which a client does not read
STAYS_S = (0.0, 0.05, 0.3)  # of a client that leaves the handler
SIPS = 20  # of a client that reads slowly: longer, and the excuse of a kill would be over
GARBAGE = b"HELO chaos\r\n\r\n"

Way = Callable[[], Awaitable[None]]


class Client:
    """Asks one request after the other, each in some way.

    Args:
        port: of the server.
        asker: draws what is asked.
        checker: judges what is answered.
        rng: draws how it is asked.
        interruptions: shared by all clients.
        grpc: asks by gRPC.
    """

    def __init__(
        self,
        port: int,
        asker: HandlerAsker,
        checker: Checker,
        rng: random.Random,
        interruptions: Interruptions,
        grpc: GrpcConversation,
    ) -> None:
        self._grpc = grpc
        self._ask = asker
        self._checker = checker
        self._rng = rng
        self._interruptions = interruptions
        self._talk = Conversation(port, checker, interruptions, rng)
        self._ways: dict[Way, int] = {
            self._single: 30,
            self._popular: 22,
            self._batch: 14,
            self._bad: 8,
            self._by_grpc: 10,
            self._relayed: 10,
            self._streamed: 6,
            self._hurried: 4,
            self._pipelined: 3,
            self._in_pieces: 3,
            self._chunked: 2,
            self._expecting: 1,
            self._http_1_0: 2,
            self._half_closed: 1,
            self._stalls: 1,
            self._garbage: 1,
            self._garbage_behind: 1,
            self._leaves_in_head: 1,
            self._leaves_in_body: 2,
            self._leaves_waiting: 4,
            self._leaves_relayed: 3,
            self._leaves_unread: 2,
            self._large_by_grpc: 1,
            self._reads_late: 2,
            self._never_reads: 1,
        }

    async def run(self, left: Iterator[int]) -> None:
        """Ask as long as something is left to be asked, or until nobody listens any more."""
        ways, weights = tuple(self._ways), tuple(self._ways.values())
        await self._go(left, lambda: self._rng.choices(ways, weights)[0])

    async def flood(self, left: Iterator[int]) -> None:
        """Ask for nothing but large batches in haste, of one model."""
        await self._go(left, lambda: self._flood)

    async def flood_ahead(self, left: Iterator[int]) -> None:
        """Write hundreds of cheap requests at once, again and again."""
        await self._go(left, lambda: self._flood_ahead)

    async def _go(self, left: Iterator[int], choose: Callable[[], Way]) -> None:
        for _ in left:
            way = choose()
            self._checker.kinds[way.__name__.strip("_")] += 1
            try:
                await way()
            except OSError as error:  # of connecting
                if not self._interruptions.excuse(time.monotonic()):
                    self._checker.lost(self._ask.bad(), f"nobody listens: {error}")
                break
        await self._talk.end()
        await self._grpc.end()

    # In order.

    async def _single(self) -> None:
        await self._in_order(self._ask.single())

    async def _popular(self) -> None:
        await self._in_order(self._ask.popular())

    async def _batch(self) -> None:
        await self._in_order(self._ask.batch())

    async def _relayed(self) -> None:
        await self._in_order(self._ask.relayed())

    async def _streamed(self) -> None:
        await self._in_order(self._ask.streamed())

    async def _bad(self) -> None:
        await self._in_order(self._ask.bad())

    async def _hurried(self) -> None:
        await self._in_order(self._ask.hurried())

    async def _flood(self) -> None:
        await self._in_order(self._ask.flood())
        await asyncio.sleep(0.05)  # or nothing else would be asked

    async def _in_order(self, request: Request) -> None:
        connection = await self._talk.connection()
        sent_at = time.monotonic()
        connection.send(request.bytes)
        await self._talk.take(connection, request, sent_at)

    # In other ways.

    async def _flood_ahead(self) -> None:
        """All answers must come, in order; those of a connection that closes have an excuse."""
        flood, connection = self._ask.cheap(), await self._talk.new()
        sent_at = time.monotonic()
        connection.send(b"".join(sent for _, sent in flood))
        await self._take_all(connection, [request for request, _ in flood], sent_at)
        await self._talk.part(connection, flood[-1][0])
        await asyncio.sleep(self._rng.random() * AHEAD_PAUSE_S)

    async def _by_grpc(self) -> None:
        await self._infer(self._ask.by_grpc())

    async def _large_by_grpc(self) -> None:
        await self._infer(self._ask.large_by_grpc())

    async def _infer(self, request: Request) -> None:
        await self._grpc.connect(lambda: self._interruptions.stopped_at is not None)
        sent_at = time.monotonic()
        try:
            got = await self._grpc.ask(request)
        except (Cut, Unanswered) as error:
            self._talk.not_answered(request, sent_at, str(error))
        else:
            self._checker.judge(request, got, sent_at)

    async def _pipelined(self) -> None:
        connection = await self._talk.connection()
        requests = [self._ask.good() for _ in range(self._rng.randrange(2, 7))]
        requests.insert(self._rng.randrange(len(requests) + 1), self._ask.bad())
        sent_at = time.monotonic()
        connection.send(b"".join(each.bytes for each in requests))
        await self._take_all(connection, requests, sent_at)

    async def _take_all(
        self, connection: ChaosConnection, requests: Sequence[Request], sent_at: float
    ) -> None:
        for index, request in enumerate(requests):
            if not await self._talk.take(connection, request, sent_at):
                for unanswered in requests[index + 1 :]:
                    self._talk.behind_the_last(unanswered, f"no answer behind that to {request.id}")
                return

    async def _in_pieces(self) -> None:
        request, connection = self._ask.good(), await self._talk.connection()
        began, rest = time.monotonic(), request.bytes
        while rest:
            size = self._rng.randrange(1, max(2, len(rest) // 2 + 1))
            connection.send(rest[:size])
            rest = rest[size:]
            await asyncio.sleep(self._rng.choice((0, 0.001, 0.01)))
        await self._talk.take(connection, request, began, time.monotonic())

    async def _chunked(self) -> None:
        request, connection = self._ask.chunked(), await self._talk.connection()
        began, body = time.monotonic(), request.body
        connection.send(request.head(length=-1))
        middle = self._rng.randrange(1, len(body))
        for chunk in (body[:middle], body[middle:], b""):
            connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            await asyncio.sleep(0)
        await self._talk.take(connection, request, began, time.monotonic())

    async def _expecting(self) -> None:
        request, connection = self._ask.expecting(), await self._talk.connection()
        began = time.monotonic()
        connection.send(request.head())
        await asyncio.sleep(0.005)
        connection.send(request.body)
        await self._talk.take(connection, request, began, time.monotonic())

    async def _http_1_0(self) -> None:
        request, connection = self._ask.good(), await self._talk.new()
        sent_at = time.monotonic()
        connection.send(request.head(version="1.0") + request.body)
        await self._talk.take(connection, request, sent_at)
        await connection.until_closed(CLOSES_S)
        if connection.is_open:
            self._checker.offend(Verdict.UNEXPECTED, "HTTP/1.0", request, "it stays open")
        await self._talk.part(connection, request)

    async def _half_closed(self) -> None:
        """It counts as gone, if the answer was not there already (docs/reliability.md)."""
        request, connection = self._ask.good(), await self._talk.new()
        sent_at = time.monotonic()
        connection.send(request.bytes)
        connection.half_close()
        await self._talk.take_if_any(connection, request, sent_at)

    async def _stalls(self) -> None:
        request, connection = self._ask.stalling(STALL_MS), await self._talk.new()
        sent_at = time.monotonic()
        connection.send(request.head() + request.body[:5])
        await self._talk.take_the_only(connection, request, sent_at)

    async def _garbage(self) -> None:
        connection = await self._talk.new()
        sent_at = time.monotonic()
        connection.send(GARBAGE)
        got = await self._talk.take_refusal(connection, sent_at)
        if got is not None:
            self._checker.judge_refused_connection(got)
        connection.leave()

    async def _garbage_behind(self) -> None:
        """A good request, and no HTTP behind it: it has its own answer, or a 400 for all."""
        request, connection = self._ask.good(), await self._talk.new()
        sent_at = time.monotonic()
        connection.send(request.bytes + GARBAGE)
        got = await self._talk.take_refusal(connection, sent_at)
        if got is None or (got.status == 400 and got.closes):
            self._checker.left(request)  # it has spoilt its own connection
        else:
            self._checker.judge(request, got, sent_at)
        connection.leave()

    # They do not read.

    async def _reads_late(self) -> None:
        """Every byte must be right, however late and slowly it is read."""
        connection, requests, sent_at = await self._ask_deaf()
        for _ in range(self._rng.choice((0, SIPS))):
            connection.read_on()
            await asyncio.sleep(0.001)
            connection.stop_reading()
            await asyncio.sleep(0.02)
        connection.read_on()
        await self._take_all(connection, requests, sent_at)
        await self._talk.part(connection, requests[-1])

    async def _never_reads(self) -> None:
        connection, requests, _ = await self._ask_deaf()
        self._checker.told.unread_streams += requests[0].model == STREAMER
        for request in requests[1:]:
            self._checker.left(request)
        await self._talk.leave(connection, requests[0])

    async def _ask_deaf(self) -> tuple[ChaosConnection, list[Request], float]:
        """Ask for a stream, or for large answers, some ahead, and do not read for a while."""
        requests = [self._ask.large() for _ in range(self._rng.randrange(1, 4))]
        if self._rng.random() < 0.5:
            requests = [self._ask.large_stream()]
        connection = await self._talk.new()
        connection.stop_reading()
        sent_at = time.monotonic()
        connection.send(b"".join(each.bytes for each in requests))
        await asyncio.sleep(self._rng.choice(DEAF_S))
        return connection, requests, sent_at

    # They leave.

    async def _leaves_in_head(self) -> None:
        request, connection = self._ask.good(), await self._talk.new()
        head = request.head()
        connection.send(head[: self._rng.randrange(1, len(head))])
        await self._talk.leave(connection, request)

    async def _leaves_in_body(self) -> None:
        request, connection = self._ask.good(), await self._talk.new()
        connection.send(request.bytes[: -self._rng.randrange(1, len(request.body))])
        await self._talk.leave(connection, request)

    async def _leaves_waiting(self) -> None:
        request = self._rng.choice((self._ask.slow, self._ask.popular, self._ask.batch))()
        connection = await self._talk.new()
        connection.send(request.bytes)
        await self._talk.leave(connection, request)

    async def _leaves_relayed(self) -> None:
        request = self._rng.choice((self._ask.relayed, self._ask.streamed))()
        connection = await self._talk.new()
        connection.send(request.bytes)
        await asyncio.sleep(self._rng.choice(STAYS_S))
        await self._talk.leave(connection, request)

    async def _leaves_unread(self) -> None:
        """When its answer, or the beginning of a stream, is there."""
        request = self._rng.choice((self._ask.good, self._ask.streamed))()
        connection = await self._talk.new()
        connection.send(request.bytes)
        for _ in range(100):
            if connection.leftover or not connection.is_open:
                break
            await asyncio.sleep(0.01)
        await self._talk.leave(connection, request)
