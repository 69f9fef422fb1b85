"""Bodies with a Content-Encoding (RFC 9110, section 8.4): on both paths, small and large."""

from __future__ import annotations

import asyncio
import gzip
import io
import itertools
import json
import random
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from app.api.codings import MAX_ON_LOOP_BYTES
from tests.artifacts import write_artifact
from tests.integration.listening import Doubles, Listening, listening, until
from tests.integration.wire import COUNTED, OPEN, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
PATHS = {"fast": "/predict", "asgi": "/predict?"}
BODY = b'{"input": [7, 2]}'
LARGE = BODY + b" " * 3 * MAX_ON_LOOP_BYTES
CODINGS: dict[str, Any] = {"gzip": gzip.compress, "x-gzip": gzip.compress, "deflate": zlib.compress}
MIB = 1 << 20


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double")
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(models: Path) -> AsyncIterator[Listening]:
    async with listening(models) as it:
        yield it


def slow_to_inflate() -> bytes:
    """A body in gzip, with whitespace that hardly shrinks."""
    blanks = random.Random(1).randbytes(4 * MIB).translate(b" \t\n\r" * 64)
    return gzip.compress(BODY + blanks, compresslevel=1)  # the default takes seconds


async def check_well(server: Listening) -> None:
    assert (await server.ask(request())).status == 200
    assert await server.metric(OPEN) == 0
    assert await server.metric(COUNTED, status="500") == 0


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
class TestCodings:
    async def test_a_compressed_body_is_accepted(self, server: Listening, path: str) -> None:
        plains = (BODY, BODY, LARGE, LARGE)
        for coding, plain, chunk_bytes in itertools.product(CODINGS, plains, (None, 99)):
            body = CODINGS[coding](plain)
            sent = request(path, body, content_encoding=coding, chunk_bytes=chunk_bytes)
            answer = await server.ask(sent)
            assert answer.json()["prediction"] == {"outputs": {"y": [14, 4]}}
        await check_well(server)

    async def test_a_file_that_is_compressed_twice_has_one_limit(
        self, server: Listening, path: str
    ) -> None:
        file = io.BytesIO()
        np.savez_compressed(file, x=np.zeros((1 << 20, 2), np.float32))
        sent: dict[str, Any] = {"content_type": "application/x-npz", "content_encoding": "gzip"}
        body = gzip.compress(file.getvalue())
        answer = await server.ask(request(path, body, **sent))
        assert (answer.status, answer.code) == (413, "payload_too_large")
        assert f"the limit for {len(body)} received bytes is 1048576" in answer.json()["error"]

    async def test_a_compressed_binary_body_is_accepted(self, server: Listening, path: str) -> None:
        many = gzip.compress(bytes(8) * 1000)
        path = path.replace("predict", "batch-predict")
        octets: dict[str, Any] = {
            "content_type": "application/octet-stream",
            "content_encoding": "gzip",
        }
        answer = await server.ask(request(path, many, **octets))
        assert len(answer.json()["predictions"]) == 1000

    async def test_an_unsupported_coding_is_rejected(self, server: Listening, path: str) -> None:
        for coding in ("br", "zstd", "compress", "gzip, gzip", "gzip;q=1"):
            answer = await server.ask(request(path, content_encoding=coding))
            assert (answer.status, answer.code) == (415, "unsupported_content_coding")
            assert answer["accept-encoding"] == "gzip, deflate"
            assert "gzip, deflate" in answer.json()["error"]
        assert (await server.ask(request(path, content_encoding="identity"))).status == 200
        await check_well(server)

    @pytest.mark.parametrize("plain", [BODY, LARGE], ids=["small", "large"])
    async def test_a_damaged_body(self, server: Listening, path: str, plain: bytes) -> None:
        whole = gzip.compress(plain)
        for body in (whole[:-1], whole + b"a", whole[:5], b"", zlib.compress(plain)):
            answer = await server.ask(request(path, body, content_encoding="gzip"))
            assert (answer.status, answer.code) == (422, "invalid_input")
        await check_well(server)

    async def test_a_bomb(self, models: Path, path: str) -> None:
        async with listening(models, max_body_bytes=MIB) as server:
            for size in (MIB + 1, 200 * MIB):
                bomb = gzip.compress(bytes(size))
                answer = await server.ask(request(path, bomb, content_encoding="gzip"))
                assert (answer.status, answer.code) == (413, "payload_too_large")
            await check_well(server)

    async def test_a_caller_disconnects_while_its_body_inflates(
        self, server: Listening, path: str
    ) -> None:
        body = slow_to_inflate()
        wires = [await server.connect() for _ in range(4)]
        for wire in wires:
            wire.send(request(path, body, content_encoding="gzip"))
        await asyncio.sleep(0.005)
        for wire in wires:
            await wire.close()
        await until(lambda: not server.connections)
        await until(lambda: server.service.metrics.requests_open == 0)
        await check_well(server)

    async def test_the_deadline_passes_while_a_body_inflates(
        self, server: Listening, path: str
    ) -> None:
        body = slow_to_inflate()
        sent = request(path, body, content_encoding="gzip", x_torchlane_timeout_ms="1")
        assert (await server.ask(sent)).code in ("deadline_exceeded", "overloaded")
        await check_well(server)

    async def test_compression_does_not_bypass_the_rate_limit(
        self, models: Path, path: str
    ) -> None:
        path = path.replace("predict", "batch-predict")
        many = json.dumps({"inputs": [[1, 2]] * 3}).encode().ljust(2 * MAX_ON_LOOP_BYTES)
        async with listening(models, rate_limit="5/minute") as server:
            sent = request(path, gzip.compress(many), content_encoding="gzip")
            answers = [await server.ask(sent) for _ in range(3)]
            assert [each.code for each in answers] == ["ok", "rate_limited", "rate_limited"]


async def test_equal_items_are_computed_once_across_codings(models: Path) -> None:
    doubles = Doubles()
    async with listening(models, make_backend=doubles) as server:
        doubles.one.batches.clear()
        await server.ask(request(body=BODY))
        await server.ask(request(body=gzip.compress(BODY), content_encoding="gzip"))
        await server.ask(request(body=zlib.compress(BODY), content_encoding="deflate"))
        assert doubles.one.batches == [[7]]
