"""Large answers: the same bytes as small ones, in slices; counted until they are sent."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.api import answering, answers, json_pieces, memory
from app.api.transport import asgi_predict, exchange, writing
from app.api.turns import Turns
from app.errors import Overloaded
from app.types import Arrays
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.integration.doubles import write_double_models
from tests.integration.listening import Doubles, Listening, listening, until
from tests.integration.test_fast_path import GOOD, LIMITS, alike, by_expect
from tests.integration.wire import WireAnswer, request
from tests.text_models import write_text_models

HELD = "torchlane_answers_bytes"


def infer(model: str, **more: Any) -> dict[str, Any]:
    tensor = {"name": "x", "datatype": "FP32", "shape": [3, 2], "data": [1, 2, 3, 4, 1, 2]}
    body = json.dumps({"id": "7", "inputs": [tensor], **more}).encode()
    return {"path": f"/v2/models/{model}/infer", "body": body}


def text(path: str, **given: Any) -> dict[str, Any]:
    given["model"] = "classify" if path == "/classify" else "embed"
    return {"path": path, "body": json.dumps(given).encode()}


BINARY = {"parameters": {"binary_data": True}}
NAMES = {"name": "y"}, {"name": "z"}
CASES: dict[str, dict[str, Any]] = {
    name: each
    for name, each in GOOD.items()
    if not any(other in each.get("path", "") for other in ("pictures", "small"))
} | {
    "infer": infer("double"),
    "infer, all binary": infer("double", parameters={"binary_data_output": True}),
    "infer, one binary": infer("two", outputs=[NAMES[0], {**NAMES[1], **BINARY}]),
    "infer, classes": infer(
        "labelled", outputs=[{"name": "y", "parameters": {"classification": 2}}]
    ),
    "TorchServe": {"path": "/predictions/double", "body": b"[1, 2]"},
    "TorchServe, labels": {"path": "/predictions/labelled", "body": b"[1, 2]"},
    "TorchServe, two outputs": {"path": "/predictions/two", "body": b"[1, 2]"},
}
CODED = ("plain", "batch", "top_k", "octets", "npy", "infer, one binary", "TorchServe, labels")
TEXTS = {
    "OpenAI": text("/v1/embeddings", input=["a b", "c"]),
    "OpenAI, base64": text("/v1/embeddings", input="a b", encoding_format="base64"),
    "infinity": text("/embeddings", input=["a b", "c"]),
    "TEI": text("/embed", inputs=["a b", "c"]),
    "classify": text("/classify", input=["a b", "c"]),
    "classify, TEI": text("/classify", inputs=[["a b"], ["c"]]),
    "classify, one": text("/classify", inputs="a b"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_double_models(folder)
    write_text_models(folder)
    return folder


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Let every answer take the way of large ones, in pieces of a few bytes."""
    patch.setattr(answering, "LARGE_BYTES", -1)
    patch.setattr(memory, "FREE_BYTES", 0)
    patch.setattr(json_pieces, "MAX_COST", 1)
    for module in (answers, asgi_predict, exchange, writing):
        patch.setattr(module, "WRITE_BYTES", 7)


async def compare(server: Listening, cases: dict[str, dict[str, Any]]) -> None:
    differing = {}
    wire = await server.connect()
    for name, given in cases.items():
        small = await wire.ask(request(**given))
        with pytest.MonkeyPatch.context() as patch:
            shrink(patch)
            large = [await wire.ask(request(**given)), await by_expect(server, given)]
        if small.status != 200 or any(alike(each) != alike(small) for each in large):
            differing[name] = [small, *large]
    assert differing == {}
    assert server.service.answers.held == 0


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_large_answers_have_the_same_bytes(models: Path, cache_bytes: int) -> None:
    """Of every protocol, on both ways, and where an answer is remembered."""
    async with listening(models, **LIMITS, cache_bytes=cache_bytes) as server:
        if cache_bytes:
            wire = await server.connect()
            for given in CASES.values():  # all others are hits
                await wire.ask(request(**given))
        await compare(server, CASES)
        if not cache_bytes:
            await compare(server, TEXTS)


def plain(answer: WireAnswer) -> Any:
    """What is alike in an answer, without its compression, and whether it was compressed."""
    status, headers, body = answer.alike()
    is_coded = ("content-encoding", "gzip") in headers
    if is_coded:
        body = gzip.decompress(answer.body)
    changed = ("connection", "content-encoding", "content-length")
    left = [each for each in headers if each[0] not in changed]
    return status, left, body, is_coded


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
async def test_answers_are_compressed_for_callers_that_accept_it(
    models: Path, cache_bytes: int
) -> None:
    """Large JSON may be; everything must be if a caller refuses other answers; none is mixed up."""
    async with listening(models, **LIMITS, cache_bytes=cache_bytes) as server:
        wire = await server.connect()
        for name in CODED:
            given = CASES[name]
            if cache_bytes:
                await wire.ask(request(**given))  # the others are hits
            small = plain(await wire.ask(request(**given)))
            is_json = ("content-type", "application/json") in small[1]
            must = request(**given, accept_encoding="gzip, identity;q=0")
            accepted = {**given, "accept_encoding": "gzip, deflate"}
            may = request(**accepted)
            for _ in range(3):  # the memo answers the last one
                assert plain(await wire.ask(may)) == small, name
                assert plain(await wire.ask(must)) == (*small[:3], True), name
                with pytest.MonkeyPatch.context() as patch:
                    shrink(patch)
                    assert plain(await wire.ask(request(**given))) == small, name
                    both = [await wire.ask(may), await by_expect(server, accepted)]
                    if not cache_bytes:
                        assert [plain(each) for each in both] == [(*small[:3], is_json)] * 2, name
        assert server.service.answers.held == server.service.offload.held == 0


async def test_a_busy_pool_leaves_answers_uncompressed(models: Path) -> None:
    async with listening(models, **LIMITS, cache_bytes=0) as server:
        wire = await server.connect()
        pool = server.service.offload
        pool.tasks += pool.max_tasks
        with pytest.MonkeyPatch.context() as patch:
            shrink(patch)
            assert "content-encoding" not in (await wire.ask(request(accept_encoding="gzip"))).names
            refused = await wire.ask(request(accept_encoding="gzip, identity;q=0"))
            assert (refused.status, refused.code) == (503, "overloaded")
        pool.tasks -= pool.max_tasks
        refused = await wire.ask(request(accept_encoding="br, identity;q=0"))
        assert (refused.status, refused.code) == (406, "not_acceptable")
        assert server.service.answers.held == 0


WIDTH = 1 << 20  # numbers of an answer that no socket takes as a whole, if it is not read
WAYS: dict[str, dict[str, Any]] = {"fast": {}, "asgi": {"expect": "100-continue"}}


def wide(inputs: Arrays) -> Arrays | None:
    if inputs["x"][0, 0] < 5:
        return None
    numbers = np.linspace(0, inputs["x"][:, 0], WIDTH, axis=1)
    return {"y": numbers.astype(np.float32)}


def ask_wide(number: float, **headers: Any) -> bytes:
    return request(body=json.dumps({"input": [number, 1]}).encode(), **headers)


def deaf(server: Listening, sent: bytes) -> socket.socket:
    """A client that does not read its answer."""
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(sent)
    return connection


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("ending", ["read", "closed"])
async def test_unread_answers_are_counted_and_more_are_rejected(
    double: Path, way: str, ending: str
) -> None:
    loop = asyncio.get_running_loop()
    limit = 20 << 20  # one answer of 12 MB, and no other
    given: dict[str, Any] = {"cache_bytes": 0, "answers_limit_bytes": limit}
    async with listening(double, make_backend=Doubles(wide), **given) as server:
        held = server.service.answers
        with deaf(server, ask_wide(5, **WAYS[way])) as first:
            first.setblocking(False)
            await until(lambda: any(each.writer.is_paused for each in server.connections))
            assert 8 * WIDTH < held.held < limit
            wire = await server.connect()
            rejected = await wire.ask(ask_wide(6, **WAYS[way]))
            assert (rejected.status, rejected.code) == (503, "overloaded")
            assert "answers that are not sent yet" in rejected.json()["error"]
            assert (rejected["retry-after"], await server.metric(HELD)) == ("1", held.held)
            assert (await wire.ask(ask_wide(1))).status == 200
            got = b""
            while ending == "read" and not got.endswith(b"]}}}"):
                got += await loop.sock_recv(first, 1 << 20)
        await until(lambda: held.held == 0)
        assert (await wire.ask(ask_wide(6, **WAYS[way]))).body.count(b",") > WIDTH


@pytest.mark.parametrize("way", WAYS)
async def test_a_full_memory_rejects_before_computing(double: Path, way: str) -> None:
    doubles = Doubles()
    async with listening(double, make_backend=doubles, answers_limit_bytes=1) as server:
        wire = await server.connect()
        batches = len(doubles.one.batches)
        with pytest.MonkeyPatch.context() as patch:
            shrink(patch)
            counted = server.service.answers.hold(1, 0)
            assert (await wire.ask(ask_wide(1, **WAYS[way]))).status == 503
            assert len(doubles.one.batches) == batches
            server.service.answers.give_back(counted)
            assert (await wire.ask(ask_wide(1, **WAYS[way]))).status == 200


ROOM = 1 << 15  # numbers of each of the answers below: 128 KiB, and 512 KiB with their JSON


def of_room(inputs: Arrays) -> Arrays:
    return {"y": np.repeat(inputs["x"][:, :1], ROOM, axis=1)}


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose outputs have a fixed size."""
    tmp_path = tmp_path_factory.mktemp("room")
    outputs = (TensorSpec(name="y", dtype="float32", shape=(-1, ROOM)),)
    expected = {"y": np.full(ROOM, 1, np.float32)}
    write_artifact(tmp_path, "double", outputs=outputs, expected=[expected])
    return tmp_path


@pytest.mark.parametrize("way", WAYS)
async def test_answers_of_known_size_have_their_room_before_they_are_computed(
    room: Path, way: str
) -> None:
    doubles, limit = Doubles(of_room), 1 << 20  # for two of six
    given: dict[str, Any] = {"cache_bytes": 0, "answers_limit_bytes": limit}
    async with listening(room, make_backend=doubles, **given) as server:
        held = server.service.answers
        doubles.hold()
        wires = [await server.connect() for _ in range(6)]
        for at, wire in enumerate(wires):
            wire.send(ask_wide(at + 6, **WAYS[way]))
        rejected = await asyncio.gather(*(wire.answer() for wire in wires[2:]))
        assert [each.code for each in rejected] == ["overloaded"] * 4
        assert limit / 2 < held.held <= limit
        doubles.go_on()
        answered = await asyncio.gather(*(wire.answer() for wire in wires[:2]))
        assert [each.status for each in answered] == [200, 200]
        await until(lambda: held.held == 0)
        assert sum(map(len, doubles.one.batches)) == 2


@pytest.mark.parametrize(
    ("way", "end"),
    [("fast", "left"), ("asgi", "left"), ("fast", "late"), ("fast", "failed"), ("asgi", "full")],
)
async def test_room_is_given_back_without_an_answer(room: Path, way: str, end: str) -> None:
    def fails(inputs: Arrays) -> Arrays:
        if end == "failed" and inputs["x"][0, 0] != 1:
            raise ValueError("no")
        return of_room(inputs)

    doubles = Doubles(fails)
    given: dict[str, Any] = {"queue_limit_items": 1} if end == "full" else {}
    async with listening(room, make_backend=doubles, cache_bytes=0, **given) as server:
        held = server.service.answers
        doubles.hold()
        late = {"x_torchlane_timeout_ms": "300"} if end == "late" else {}
        wires = [await server.connect() for _ in range(4)]
        for at, wire in enumerate(wires):
            wire.send(ask_wide(at + 6, **WAYS[way], **late))
        await until(lambda: held.held > 0)
        if end == "left":
            await asyncio.sleep(0.05)
            for wire in wires:
                await wire.close()
        elif end == "late":
            await until(lambda: held.held == 0)
        doubles.go_on()
        await until(lambda: held.held == 0)


def any_size(_: int) -> None:
    """Never too large."""


class TestSlices:
    """Answers that are encoded at the same time have their turns."""

    @staticmethod
    def answer(
        turns: Turns, name: bytes, log: list[bytes], fails: Exception | None = None
    ) -> answers.LargeAnswer:
        def pieces() -> answers.Pieces:
            for _ in range(3):
                log.append(name)
                yield name
            if fails is not None:
                raise fails
            return ()

        return answers.LargeAnswer(turns, any_size, pieces(), lambda _, content: (200, [], content))

    async def test_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ticks = itertools.count()
        monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
        monkeypatch.setattr(answers, "SLICE_S", 1.5)  # one piece
        turns, bug = Turns(), ValueError("no")
        log: list[bytes] = []
        made = [self.answer(turns, name, log) for name in (b"a", b"b")]
        made.append(self.answer(turns, b"c", log, bug))
        left = self.answer(turns, b"d", log)
        left.start(lambda _: pytest.fail("it was cancelled"))
        left.cancel()
        results = await asyncio.gather(*(each.encoded() for each in made), return_exceptions=True)
        assert log == [b"a", b"b", b"c"] * 3
        assert results == [(200, [], b"aaa"), (200, [], b"bbb"), bug]

    async def test_too_many_bytes_end_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(answers, "SLICE_S", -1.0)

        def count(_: int) -> None:
            raise Overloaded("full", retry_after_s=1)

        def pieces() -> answers.Pieces:
            yield b"never"
            return ()

        made = answers.LargeAnswer(Turns(), count, pieces(), lambda *_: (200, [], b""))
        with pytest.raises(Overloaded):
            await made.encoded()
