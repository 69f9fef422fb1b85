"""Bodies that take long to decode: read in a thread, on both ways through the server."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import io
import json
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import nn

from app.codecs.base import Budget
from app.codecs.image import ImageCodec
from app.types import Item
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.integration.listening import Listening, listening, until
from tests.integration.wire import COUNTED, OPEN, READY, WireAnswer, request

WAYS: dict[str, dict[str, Any]] = {"short": {}, "asgi": {"expect": "100-continue"}}
NUMBERS = request(body=b'{"input": [[[1, 0.5]]]}')
SHAPE = (-1, 1, 1, 2)


class Twice(nn.Module):
    """x -> 2 x."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return x * 2


class GatedCodec(ImageCodec):
    """Decodes in threads only while its gate is open."""

    gate: threading.Event
    begun: int
    bug: Exception | None

    def decode_raw(
        self, media_type: str, body: bytes, *, max_items: int | None, budget: Budget | None = None
    ) -> list[Item]:
        if threading.current_thread() is not threading.main_thread():
            self.begun += 1
            self.gate.wait(60)
            if self.bug is not None:
                raise self.bug
        return super().decode_raw(media_type, body, max_items=max_items, budget=budget)


def picture(level: int = 255, side: int = 600) -> bytes:
    buffer = io.BytesIO()
    Image.new("L", (2 * side, side), level).save(buffer, "PNG")
    return buffer.getvalue()


def sent(way: str, body: bytes | None = None, **headers: str) -> bytes:
    given = {"content_type": "image/png", **WAYS[way], **headers}
    return request(body=picture() if body is None else body, **given)


@dataclasses.dataclass
class Scene:
    """A server whose threads the test holds."""

    server: Listening
    codec: GatedCodec

    def hold(self) -> None:
        self.codec.gate.clear()

    def go_on(self) -> None:
        self.codec.gate.set()

    @property
    def tasks(self) -> int:
        return self.server.service.offload.tasks

    async def begin(self, data: bytes) -> asyncio.Task[WireAnswer]:
        """Ask, and return once it is known to the pool."""
        before = self.tasks
        asked = asyncio.create_task(self.server.ask(data))
        await until(lambda: self.tasks == before + 1)
        return asked


@contextlib.asynccontextmanager
async def scene(tmp_path: Path, **settings: Any) -> AsyncIterator[Scene]:
    x = TensorSpec(name="x", dtype="float32", shape=SHAPE)
    how = PicturePreprocess(
        width=2, height=1, channels=1, mean=(0.0,), std=(1.0,), polarity="light-on-dark"
    )
    write_artifact(
        tmp_path,
        "twice",
        module=Twice(),
        inputs=(x,),
        outputs=(TensorSpec(name="y", dtype="float32", shape=SHAPE),),
        codec=ImageCodecSpec(preprocess=how),
        golden=[{"x": torch.ones(SHAPE[1:]).numpy()}],
    )
    async with listening(tmp_path, **settings) as server:
        loaded = server.service.loaded
        model = loaded.resolve()
        codec = GatedCodec(model.manifest)
        codec.gate, codec.begun, codec.bug = threading.Event(), 0, None
        codec.gate.set()
        loaded.publish(dataclasses.replace(model, codec=codec))
        try:
            yield Scene(server, codec)
        finally:
            codec.gate.set()


def predicted(answer: WireAnswer) -> Any:
    assert answer.status == 200, answer.body
    return answer.json()["prediction"]["outputs"]["y"]


both = pytest.mark.parametrize("way", WAYS)


@both
async def test_decoding_a_picture_does_not_block_others(tmp_path: Path, way: str) -> None:
    async with scene(tmp_path) as s:
        s.hold()
        asked = await s.begin(sent(way))
        assert predicted(await s.server.ask(NUMBERS)) == [[[2, 1]]]
        assert (await s.server.ask(READY)).status == 200
        await asyncio.sleep(0.05)
        s.go_on()
        answer = await asked
        assert predicted(answer) == [[[2, 2]]]
        timing = answer["server-timing"]
        assert float(timing.partition("decode;dur=")[2].partition(",")[0]) >= 50
        assert await s.server.metric(COUNTED, route="/predict", status="200") == 2
        assert await s.server.metric(OPEN) == 0


async def test_a_small_picture_stays_on_the_loop(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.hold()
        assert predicted(await s.server.ask(sent("short", picture(side=14)))) == [[[2, 2]]]
        assert s.codec.begun == 0


async def test_a_deadline_ends_the_wait_for_a_thread(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.server.service.offload.max_tasks = 100
        threads = s.server.service.offload.threads
        s.hold()
        first = [await s.begin(sent("short", picture(level))) for level in range(threads - 1)]
        begun = await s.begin(sent("short", picture(99), x_torchlane_timeout_ms="1000"))
        await until(lambda: s.codec.begun == threads)
        assert (await begun).code == "deadline_exceeded"  # although a thread decodes it
        late = await s.server.ask(sent("short", picture(200), x_torchlane_timeout_ms="100"))
        assert (late.status, late.code) == (504, "deadline_exceeded")
        assert s.tasks == threads  # it has left
        s.go_on()
        for asked in first:
            predicted(await asked)
        assert s.codec.begun == threads  # it was never decoded


@both
async def test_a_disconnected_client_frees_its_place(tmp_path: Path, way: str) -> None:
    async with scene(tmp_path) as s:
        threads = s.server.service.offload.threads
        s.hold()
        first = [await s.begin(sent(way, picture(level))) for level in range(threads)]
        wire = await s.server.connect()
        wire.send(sent(way, picture(200)))
        await until(lambda: s.tasks == threads + 1)
        await wire.close()
        await until(lambda: s.tasks == threads)
        s.go_on()
        for asked in first:
            predicted(await asked)
        assert s.codec.begun == threads
        await until(lambda: not s.server.connections)


async def test_a_full_thread_pool_rejects_immediately(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        s.server.service.offload.max_tasks = 1
        s.hold()
        first = await s.begin(sent("short"))
        full = await s.server.ask(sent("short", picture(200)))
        assert (full.status, full.code) == (503, "overloaded")
        assert int(full["retry-after"]) >= 1
        assert predicted(await s.server.ask(NUMBERS)) == [[[2, 1]]]
        s.go_on()
        predicted(await first)


@pytest.mark.parametrize(
    ("bug", "status", "code"), [(None, 422, "invalid_input"), (KeyError("x"), 500, "internal")]
)
async def test_thread_and_loop_give_the_same_errors(
    tmp_path: Path, bug: Exception | None, status: int, code: str
) -> None:
    async with scene(tmp_path) as s:
        s.codec.bug = bug
        whole = picture()
        answer = await s.server.ask(sent("short", whole[:8] + bytes(40_000)))
        assert (answer.status, answer.code) == (status, code)
        assert s.codec.begun == 1
        assert await s.server.metric(COUNTED, route="/predict") == 1
        assert predicted(await s.server.ask(NUMBERS)) == [[[2, 1]]]


@both
@pytest.mark.parametrize("budget_s", [10.0, 0.0])
async def test_a_drain_answers_every_request(tmp_path: Path, way: str, budget_s: float) -> None:
    async with scene(tmp_path) as s:
        s.hold()
        asked = await s.begin(sent(way))
        draining = asyncio.create_task(s.server.service.lifecycle.drain(budget_s))
        if budget_s:
            await asyncio.sleep(0.02)
            assert not draining.done()
        else:
            await until(draining.done)
        s.go_on()
        answer = await asked
        assert answer.code == ("ok" if budget_s else "shutting_down")
        await draining


async def test_large_json_is_decoded_off_the_loop(tmp_path: Path) -> None:
    async with scene(tmp_path) as s:
        batch = {"inputs": [{"x": [[[number, 1.0]]]} for number in range(1000)]}
        body = json.dumps(batch).encode().ljust(40_000)
        asked = request("/batch-predict", body)
        s.server.service.offload.max_tasks = 0
        assert (await s.server.ask(asked)).code == "overloaded"
        s.server.service.offload.max_tasks = 1
        made = (await s.server.ask(asked)).json()["predictions"]
        assert [each["outputs"]["y"] for each in made] == [[[[2 * n, 2]]] for n in range(1000)]
