"""GET /live: what a listener gets, who may listen, and how a listener ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from app.access.entries import make_key
from app.api.transport import writing
from tests.artifacts import write_artifact
from tests.integration.harness import held
from tests.integration.listening import Listening, listening, until
from tests.integration.wire import LIMIT_S, request

SCRAPE, SCRAPE_LINE = make_key("prometheus", ["metrics"])
PREDICT, PREDICT_LINE = make_key("mobile", ["predict"])
FAST_S = 0.05


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """More snapshots a second than there are in earnest."""
    monkeypatch.setattr("app.api.page.live.INTERVAL_S", FAST_S)
    monkeypatch.setattr("app.api.page.live.LEAST_S", FAST_S / 2)


def ask(method: str = "GET", **headers: Any) -> bytes:
    return request("/live", b"", method=method, **headers)


class Listener:
    """A connection that listens."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self.head = b""

    async def snapshot(self) -> dict[str, Any]:
        """The next one; EOFError: there are no more."""
        async with asyncio.timeout(LIMIT_S):
            while True:
                line = await self._reader.readline()
                if not line or line == b"0\r\n":
                    raise EOFError
                if line.startswith(b"data: "):
                    assert (await self._reader.readline()) == b"\n"
                    found: dict[str, Any] = json.loads(line.removeprefix(b"data: "))
                    return found

    async def ended(self) -> None:
        """Return when the stream ends as it should, and its connection with it."""
        with contextlib.suppress(EOFError):
            while True:
                await self.snapshot()
        async with asyncio.timeout(LIMIT_S):
            assert (await self._reader.read()).strip() == b""


@contextlib.asynccontextmanager
async def listener(server: Listening, **headers: str) -> AsyncIterator[Listener]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    try:
        writer.write(ask(**headers))
        made = Listener(reader, writer)
        async with asyncio.timeout(LIMIT_S):
            made.head = await reader.readuntil(b"\r\n\r\n")
        assert made.head.startswith(b"HTTP/1.1 200 "), made.head
        yield made
    finally:
        writer.close()


async def test_snapshots_show_load_and_models(models: Path) -> None:
    async with listening(models) as server, listener(server) as live:
        assert b"content-type: text/event-stream\r\n" in live.head
        assert b"cache-control: no-store\r\n" in live.head
        assert b"x-accel-buffering: no\r\n" in live.head
        first = await live.snapshot()
        for number in range(20):
            await server.ask(request(body=b'{"input": [%d, 2]}' % number))
        seen = [first]
        while sum(each["requests"]["per_s"] * each["interval_s"] for each in seen) < 19.9:
            seen.append(await live.snapshot())
        assert all(each["interval_s"] > 0.4 for each in seen)
        (model,) = seen[-1]["models"]
        assert (model["name"], model["version"], model["queue_limit_items"]) == ("double", 1, 1024)
        assert seen[-1]["requests"]["p99_ms"] > 0
        (version,) = seen[-1]["versions"]
        assert version == {
            **{"name": "double", "version": 1, "state": "ready"},
            **dict.fromkeys(("detail", "stage", "seconds", "progress")),
        }
        assert seen[-1]["ready"] is True
        assert [each["state"] for each in seen[-1]["replicas"]] == ["ready"]


@pytest.mark.usefixtures("fast")
async def test_metrics_are_not_read_without_listeners(models: Path) -> None:
    async with listening(models) as server:
        read = server.service.metrics.read
        reads = 0

        async def counted(how: Any) -> Any:
            nonlocal reads
            reads += 1
            return await read(how)

        server.service.metrics.read = counted  # type: ignore[method-assign]
        await asyncio.sleep(4 * FAST_S)
        assert reads == 0
        async with listener(server) as live:
            await live.snapshot()
        await until(lambda: not server.connections)
        then = reads
        assert then >= 2
        await asyncio.sleep(4 * FAST_S)
        assert reads <= then + 1  # one may have begun


@pytest.mark.usefixtures("fast")
async def test_an_endless_request_body_ends_the_stream(models: Path) -> None:
    async with listening(models) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(ask().replace(b"content-length: 0\r\n", b"transfer-encoding: chunked\r\n"))
        assert b"HTTP/1.1 200 " in await reader.readuntil(b"\r\n\r\n")
        async with asyncio.timeout(LIMIT_S):
            with contextlib.suppress(ConnectionError):
                while not reader.at_eof():
                    writer.write(b"1\r\nx\r\n")
                    await reader.read(1 << 16)
        writer.close()
        await until(lambda: not server.connections)


@pytest.mark.usefixtures("fast")
async def test_too_many_listeners_get_retry_after(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.api.page.live.MAX_LISTENERS", 2)
    async with listening(models) as server, listener(server) as one:
        async with listener(server):
            wire = await server.connect()
            head = await wire.ask(ask("HEAD"))  # it starts no stream
            assert (head.status, head["content-type"]) == (200, "text/event-stream")
            await wire.close()
            refused = await server.ask(ask())
            assert (refused.status, refused.code) == (503, "overloaded")
            assert int(refused["retry-after"]) >= 1
            await one.snapshot()
        await until(lambda: len(server.connections) == 1)
        async with listener(server) as again:  # there is room as soon as one has left
            await again.snapshot()


@pytest.mark.usefixtures("fast")
async def test_a_listener_that_never_reads_is_disconnected(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "LAST_READ_S", FAST_S)
    monkeypatch.setattr(writing, "UNREAD_S", FAST_S)
    async with listening(models) as server, listener(server) as live:
        with socket.socket() as mute:
            mute.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            mute.connect(("127.0.0.1", server.port))
            mute.sendall(ask())
            await until(lambda: len(server.connections) == 2)
            most = 0
            async with asyncio.timeout(LIMIT_S):
                while len(server.connections) > 1:
                    await live.snapshot()
                    waiting = [
                        each.transport.get_write_buffer_size() for each in server.connections
                    ]
                    most = max(most, *waiting)
            assert 0 < most < 2048  # one snapshot at most
            assert await server.metric("torchlane_connections_cut_total", code="answer_unread") == 1


@pytest.mark.usefixtures("fast")
async def test_the_stream_ends_when_its_key_is_revoked(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.access.keyring.CHECK_EVERY_S", 0.01)
    file = tmp_path / "keys"
    file.write_text(f"{SCRAPE_LINE}\n{PREDICT_LINE}\n")
    async with listening(models, api_keys_file=file, open_metrics=False) as server:
        assert (await server.ask(ask())).status == 401
        assert (await server.ask(ask(authorization=f"Bearer {PREDICT}"))).status == 403
        async with listener(server, authorization=f"Bearer {SCRAPE}") as live:
            await live.snapshot()
            file.write_text(f"{PREDICT_LINE}\n")
            await live.ended()


@pytest.mark.usefixtures("fast")
async def test_problems_are_hidden_when_models_are_closed(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    (write_artifact(tmp_path, "double", version=2) / "script.pt").write_bytes(b"broken")
    for keys, shown in ((None, True), (SCRAPE_LINE, False)):
        async with listening(tmp_path, api_keys=keys) as server, listener(server) as live:
            newest = (await live.snapshot())["versions"][0]
            assert (newest["version"], newest["state"]) == (2, "failed")
            assert ("script.pt" in (newest["detail"] or "")) is shown


@pytest.mark.usefixtures("fast")
async def test_the_stream_ends_when_the_server_drains(models: Path) -> None:
    async with listening(models) as server, listener(server) as live:
        await live.snapshot()
        server.service.lifecycle.begin_drain(10.0)
        await live.ended()
        late = await server.ask(ask())
        assert (late.status, late.code) == (503, "shutting_down")


@pytest.mark.usefixtures("fast")
async def test_snapshots_show_the_progress_of_a_load(tmp_path: Path) -> None:
    write_artifact(tmp_path, "double")
    go_on = threading.Event()
    go_on.set()
    async with listening(tmp_path, make_backend=held(go_on), reload_s=0) as server:
        go_on.clear()
        try:
            write_artifact(tmp_path, "double", version=2)
            reload = asyncio.create_task(server.service.lifecycle.reload())
            async with listener(server) as live:
                version = (await live.snapshot())["versions"][0]
                while version["stage"] != "load":
                    version = (await live.snapshot())["versions"][0]
                assert (version["version"], version["state"]) == (2, "loading")
                assert version["progress"] == 0.0
                assert version["seconds"] >= 0
                go_on.set()
                await reload
                while version["state"] != "ready":
                    version = (await live.snapshot())["versions"][0]
                assert (version["stage"], version["progress"]) == (None, None)
        finally:
            go_on.set()
