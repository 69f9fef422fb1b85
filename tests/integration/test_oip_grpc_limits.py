"""gRPC: who may call, deadlines, overload, and limits of everything that a stranger sends."""

from __future__ import annotations

import asyncio
import gc
import gzip
from collections.abc import AsyncIterator, Awaitable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import pytest_asyncio
from grpc import StatusCode as Code

from app.access.entries import make_key
from app.api import answering, memory
from app.api.oip.grpc import server as grpc_server
from app.api.oip.grpc import unread
from app.api.oip.grpc.adapter import AioServer
from app.api.oip.grpc.call import ROUTE
from app.api.oip.grpc.protos import inference_pb2 as pb
from tests.integration.grpc_calls import (
    INFERENCE,
    LARGE_FIELD,
    MAX_BODY_BYTES,
    REFERENCE,
    RawConnection,
    Server,
    numbers,
    refused,
    row,
    serving,
)
from tests.integration.listening import Doubles, until

pytestmark = pytest.mark.asyncio(loop_scope="module")
SECRET, LINE = make_key("mobile", ["predict"])
ADMIN_SECRET, ADMIN_LINE = make_key("ops", ["admin"])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(models: Path) -> AsyncIterator[Server]:
    limits = {"bodies_limit_bytes": MAX_BODY_BYTES, "answers_limit_bytes": MAX_BODY_BYTES}
    async with serving(models, head_timeout_s=0.3, **limits) as it:
        yield it


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def held(models: Path) -> AsyncIterator[tuple[Server, Doubles]]:
    """A server whose batches wait until they are let go; it takes keys."""
    doubles = Doubles()
    async with serving(
        models,
        make_backend=doubles,
        queue_limit_items=1,
        max_batch_size=1,
        api_keys=f"{LINE};{ADMIN_LINE}",
        open_metrics=True,
        bodies_limit_bytes=2 * MAX_BODY_BYTES,
    ) as it:
        yield it, doubles


def _holds(answers: memory.Memory, size: float) -> bool:
    return answers.held >= size


async def failure(asked: Awaitable[object]) -> grpc.aio.AioRpcError | None:
    try:
        await asked
    except grpc.aio.AioRpcError as error:
        return error
    return None


class TestAccess:
    async def test_every_call_needs_its_scope(self, held: tuple[Server, Doubles]) -> None:
        server, _ = held
        predict, admin = (("x-api-key", SECRET),), (("authorization", f"Bearer {ADMIN_SECRET}"),)

        def ask(name: str, metadata: Any = ()) -> Any:
            return server.call(f"{INFERENCE}/{name}", row().SerializeToString(), metadata=metadata)

        for name in ("ModelInfer", "ModelReady", "ServerMetadata", "RepositoryIndex"):
            await refused(Code.UNAUTHENTICATED, ask(name), "API key is required")
            await refused(Code.PERMISSION_DENIED, ask(name, admin), "predict")
            await ask(name, predict)
        wrong = (("x-api-key", "wrong"),)
        await refused(Code.UNAUTHENTICATED, ask("ModelInfer", wrong), "unknown or revoked")
        for name in ("RepositoryModelLoad", "RepositoryModelUnload"):
            await refused(Code.PERMISSION_DENIED, ask(name, predict), "admin")
        for name in ("ServerLive", "ServerReady"):
            await ask(name)
        message = pb.RepositoryModelLoadRequest(model_name="double")
        path = f"{INFERENCE}/RepositoryModelLoad"
        assert not await server.call(path, message.SerializeToString(), metadata=admin)
        message.parameters["config"].string_param = "{}"
        asked = server.call(path, message.SerializeToString(), metadata=admin)
        await refused(Code.INVALID_ARGUMENT, asked, "config")

    async def test_a_missing_key_is_rejected_before_the_message(
        self, held: tuple[Server, Doubles]
    ) -> None:
        for name in ("ModelInfer", "RepositoryModelLoad"):
            stream = held[0].channel.stream_unary(f"/{INFERENCE}/{name}")()
            await refused(Code.UNAUTHENTICATED, stream)
        streams = held[0].channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")()
        await refused(Code.UNAUTHENTICATED, streams.read(), "API key is required")

    async def test_every_attempt_counts_for_the_rate_limit(self, models: Path) -> None:
        """Messages that cannot be read count too, and are not read above the limit."""
        async with serving(models, rate_limit="4/minute") as server:
            large = row(bytes(MAX_BODY_BYTES)).SerializeToString()
            unknown = row(model="none").SerializeToString()
            for message, code in (
                (b"abc", Code.INVALID_ARGUMENT),
                (b"", Code.INVALID_ARGUMENT),
                (large, Code.RESOURCE_EXHAUSTED),
                (unknown, Code.NOT_FOUND),
            ):
                await refused(code, server.infer(message))
            for message in (b"abc", large, row().SerializeToString()):
                found = await refused(Code.RESOURCE_EXHAUSTED, server.infer(message), "rate limit")
                assert float(found["retry-after-ms"]) > 0


class TestTime:
    async def test_deadline_cancellation_and_overload(self, held: tuple[Server, Doubles]) -> None:
        server, doubles = held
        key = (("x-api-key", SECRET),)

        async def counted(code: str) -> float:
            return await server.metric("torchlane_requests_total", route=ROUTE, code=code)

        def ask(first: float, **more: Any) -> asyncio.Task[pb.ModelInferResponse]:
            octets = np.array([first, 0.25], "<f4").tobytes()
            more.setdefault("metadata", key)
            return asyncio.get_running_loop().create_task(server.infer(row(octets), **more))

        double = doubles.one
        await ask(1)
        double.gate.clear()
        try:
            running = ask(2)
            await until(lambda: 2 in double.batches[-1])
            abandoned = await counted("abandoned")
            waiting = ask(3)
            await until(lambda: server.listening.service.metrics.requests_open == 2)
            found = await refused(Code.RESOURCE_EXHAUSTED, ask(4), "queue")
            milliseconds = float(found["retry-after-ms"])
            assert milliseconds > 0
            details = found["grpc-status-details-bin"]
            assert isinstance(details, bytes)
            assert b"google.rpc.RetryInfo" in details
            waiting.cancel()
            while await counted("abandoned") == abandoned:
                await asyncio.sleep(0.01)
            late = ask(5, metadata=(*key, ("x-torchlane-timeout-ms", "60")))
            await refused(Code.DEADLINE_EXCEEDED, late)
            await refused(Code.DEADLINE_EXCEEDED, ask(6, timeout=0.06))
            # The client's own clock said so, perhaps before the server's.
            await until(lambda: server.listening.service.metrics.requests_open == 1)
        finally:
            double.gate.set()
        assert numbers(await running) == [4, 0.5]
        assert not {3, 4, 5, 6} & {value for batch in double.batches for value in batch}

    async def test_stream_without_a_request_ends(self, models: Path) -> None:
        async with serving(models, request_timeout_ms=300) as server:
            stream = server.channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")()
            await stream.write(row().SerializeToString())
            assert (await stream.read()) is not grpc.aio.EOF
            await refused(Code.DEADLINE_EXCEEDED, stream.read(), "did not arrive")


class TestLimits:
    async def test_the_message_size_limit_is_exact(self, server: Server) -> None:
        message = row()
        message.id = "x" * (MAX_BODY_BYTES - len(message.SerializeToString()) - 4)
        assert len(message.SerializeToString()) == MAX_BODY_BYTES
        assert numbers(await server.infer(message)) == [2, 4]
        message.id += "x"
        await refused(Code.RESOURCE_EXHAUSTED, server.infer(message), str(MAX_BODY_BYTES))

    async def test_compressed_messages_and_bombs(self, server: Server) -> None:
        for coding in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            assert numbers(await server.infer(row(), compression=coding)) == [2, 4]
            bomb = row(bytes(100 * MAX_BODY_BYTES))
            assert len(gzip.compress(bomb.SerializeToString())) < MAX_BODY_BYTES
            asked = server.infer(bomb, compression=coding)
            await refused(Code.RESOURCE_EXHAUSTED, asked, "larger than max")

    async def test_calls_leave_no_garbage(self, server: Server) -> None:
        """The collector would free the calls of a flood all at once, which takes up to a second."""

        async def rejected() -> None:
            for path in (ROUTE, f"/{INFERENCE}/ModelReady", "/none"):
                raw = await RawConnection.open(server.port)
                for _ in range(20):
                    raw.call({b":path": path.encode()}, b"abc")
                assert b"grpc-status" in await raw.status()
                await asyncio.sleep(0.2)  # all of them end
                await raw.close()

        await rejected()
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            await rejected()
            assert numbers(await server.infer(row())) == [2, 4]
            await asyncio.sleep(0.2)
            gc.collect()
            assert not [each for each in gc.garbage if "cygrpc" in type(each).__module__]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()

    async def test_references_to_a_large_field_count_with_its_size(self, server: Server) -> None:
        """Also if the client never acknowledges the server's SETTINGS, as here."""
        raw = await RawConnection.open(server.port)
        raw.call({}, packed=LARGE_FIELD)
        raw.call({}, packed=REFERENCE * 3)
        assert (await raw.status()).count(b"grpc-status") == 1
        raw.call({}, packed=REFERENCE * 100)
        got = await raw.status()
        assert b"grpc-status\x018" in got  # RESOURCE_EXHAUSTED
        await raw.close()

    async def test_an_endless_head_ends_the_connection(self, server: Server) -> None:
        raw = await RawConnection.open(server.port)
        raw.frame(1, 0, 1, b"")
        for _ in range(10_000):
            raw.frame(9, 0, 1, b"")
        await raw.ended()
        assert numbers(await server.infer(row())) == [2, 4]

    async def test_a_flood_of_calls_leaves_room_for_others(self, server: Server) -> None:
        """A call whose path is unknown is as cheap for its sender as calls can be."""
        floods = [await RawConnection.open(server.port) for _ in range(4)]
        for raw in floods:
            for _ in range(1000):
                raw.call({b":path": b"/none"})
        async with asyncio.timeout(60):
            assert numbers(await server.infer(row())) == [2, 4]
        for raw in floods:
            await raw.close()

    async def test_messages_that_never_arrive(self, held: tuple[Server, Doubles]) -> None:
        """As many as fit into the limit of bodies wait; quick ones are still answered."""
        server, _ = held
        key = (("x-api-key", SECRET),)
        begin = server.channel.stream_unary(f"/{INFERENCE}/ModelInfer")
        bodies = server.listening.service.bodies
        fitting = bodies.limit // (MAX_BODY_BYTES - memory.FREE_BYTES)
        waiting = [begin(metadata=key) for _ in range(fitting + 3)]
        await until(lambda: sum(each.done() for each in waiting) == 3)
        ended = [each for each in waiting if each.done()]
        for each in ended:
            found = await refused(Code.RESOURCE_EXHAUSTED, each, "unfinished")
            assert found["retry-after-ms"] == "1000"
        await server.infer(row(), metadata=key)
        for each in waiting:
            if each not in ended:
                await each.write(row().SerializeToString())
                await each.done_writing()
                assert await each

    @pytest.mark.parametrize("ending", ["closed", "cut"])
    async def test_unread_answers_are_limited(
        self, server: Server, monkeypatch: pytest.MonkeyPatch, ending: str
    ) -> None:
        """All together, and those of a connection to half of it."""
        for module in (answering, unread):
            monkeypatch.setattr(module, "LARGE_BYTES", 1000)
        monkeypatch.setattr(memory, "FREE_BYTES", 1000)
        large = row(bytes(8 * 1000), shape=[1000, 2])
        large.outputs.add(name="y").parameters["classification"].int64_param = 2
        size = len((await server.infer(large)).SerializeToString())
        answers = server.listening.service.answers
        half = answers.limit // 2 // size
        raws = [await RawConnection.open(server.port, window=0) for _ in range(2)]
        counted = 0.0
        for raw in raws:
            counted += half
            for _ in range(half + 1):  # the last one is rejected
                raw.call({b":path": ROUTE.encode()}, large.SerializeToString())
            assert b"grpc-status" in await raw.status()
            await until(partial(_holds, answers, 0.9 * counted * size))
        monkeypatch.setattr(answers, "limit", answers.held)
        await refused(Code.RESOURCE_EXHAUSTED, server.infer(large), "not sent yet")
        assert numbers(await server.infer(row())) == [2, 4]
        if ending == "cut":
            cut = await server.metric("torchlane_connections_cut_total", code="answer_unread")
            monkeypatch.setattr(unread, "PATIENCE_S", 0.1)
            monkeypatch.setattr(unread, "SHORT_PATIENCE_S", 0.1)
            monkeypatch.setattr(answers, "limit", 10 * answers.limit)
            raws.append(await RawConnection.open(server.port, window=0))
            raws[2].call({b":path": ROUTE.encode()}, large.SerializeToString())
            async with asyncio.timeout(60):
                while cut == await server.metric(
                    "torchlane_connections_cut_total", code="answer_unread"
                ):
                    await asyncio.sleep(0.01)
        for raw in raws:
            await raw.close()
        await until(lambda: answers.held == 0)
        assert await failure(server.infer(large)) is None

    async def test_reset_calls_leave_nothing_behind(
        self, server: Server, caplog: pytest.LogCaptureFixture
    ) -> None:
        for pause_s in (0, 0.001):
            raw = await RawConnection.open(server.port)
            for number in range(80):
                octets = np.array([number, pause_s], "<f4").tobytes()
                stream = raw.call({b":path": ROUTE.encode()}, row(octets).SerializeToString())
                await asyncio.sleep(pause_s)
                raw.frame(3, 0, stream, bytes(4))
            await raw.close()
        async with asyncio.timeout(60):
            while await server.metric("torchlane_requests_in_flight"):
                await asyncio.sleep(0.01)
        # Of calls whose callers have left, only some are logged, and how many are not.
        assert not [each for each in caplog.records if "requests_not_logged" not in str(each.msg)]
        assert numbers(await server.infer(row())) == [2, 4]

    async def test_a_flood_of_pings(self, server: Server) -> None:
        raw = await RawConnection.open(server.port)
        for _ in range(10):
            raw.frame(6, 0, 0, bytes(8))
        await raw.ended()

    async def test_a_silent_grpc_connection_is_closed(self, server: Server) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await RawConnection(reader, writer).ended()

    @pytest.mark.parametrize(
        "head",
        [
            {b":path": b"/inference.GRPCInferenceService/\xff\xfe"},
            {b":path": b"\xff"},
            {b"x-api-key": b"\xff\xfe\x80"},
            {b"x-\xff": b"a"},
            {b"grpc-timeout": b"1e9"},
            {b"a-bin": b"\xff"},
            {b"grpc-encoding": b"br"},
        ],
    )
    async def test_a_malformed_head_affects_no_other_call(
        self, server: Server, head: dict[bytes, bytes]
    ) -> None:
        raw = await RawConnection.open(server.port)
        raw.call(head)
        assert b"grpc-status" in await raw.status()
        await raw.close()
        assert numbers(await server.infer(row())) == [2, 4]


async def test_the_core_is_shut_down_once(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that end together crash the process; after a cancelled one the next fails."""
    begun, ended = 0, 0

    class Watched(AioServer):
        async def shutdown(self, grace: float | None) -> None:
            nonlocal begun, ended
            begun += 1
            await super().shutdown(grace)
            ended += 1

    monkeypatch.setattr(grpc_server, "AioServer", Watched)
    async with serving(models, head_timeout_s=0.3) as server:
        await server.infer(row())
        raw = await RawConnection.open(server.port)  # idle, and never closed by its client
    await raw.close()
    assert (begun, ended) == (1, 1)
