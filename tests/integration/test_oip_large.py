"""Large infer requests: what takes long to read is read in a thread."""

from __future__ import annotations

import base64
import gzip
import io
import json
import struct
from collections.abc import AsyncIterator, Mapping
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from PIL import Image
from torch import nn

from app.api.offload import OffloadPool
from models.codec_specs import ImageCodecSpec, PicturePreprocess
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.integration.listening import Listening, listening
from tests.integration.wire import WireAnswer, request

pytestmark = pytest.mark.asyncio(loop_scope="module")
COUNT = 8
WIDE = 4096


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Listening]:
    tmp_path = tmp_path_factory.mktemp("models")
    how = PicturePreprocess(width=2, height=2, channels=1, mean=(0,), std=(1,))
    write_artifact(
        *(tmp_path, "pictures", 1, nn.Identity()),
        inputs=(TensorSpec(name="x", dtype="float32", shape=(-1, 1, 2, 2)),),
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1, 1, 2, 2)),),
        codec=ImageCodecSpec(preprocess=how),
        golden=[{"x": np.zeros((1, 2, 2), np.float32)}],
    )
    for dtype in ("bool", "float32"):
        spec = TensorSpec(name="x", dtype=dtype, shape=(-1, WIDE))
        write_artifact(
            *(tmp_path, dtype, 1, nn.Identity()),
            inputs=(spec,),
            outputs=(spec.model_copy(update={"name": "y"}),),
            golden=[{"x": np.zeros(WIDE, dtype)}],
        )
    async with listening(tmp_path, default_model="float32", max_items=COUNT) as found:
        yield found


@pytest.fixture
def offloaded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what was done in threads."""
    sizes: list[int] = []
    start = OffloadPool.start

    def noted(self: OffloadPool, work, size_bytes, done):  # type: ignore[no-untyped-def]
        sizes.append(size_bytes)
        return start(self, work, size_bytes, done)

    monkeypatch.setattr(OffloadPool, "start", noted)
    return sizes


def noise() -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(1).integers(0, 256, (400, 400), np.uint8)
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


async def infer(
    server: Listening,
    model: str,
    given: Mapping[str, object],
    octets: bytes = b"",
    *,
    coding: str = "",
) -> WireAnswer:
    head = json.dumps({"inputs": [{"name": "x", **given}]}).encode()
    headers: dict[str, Any] = {"inference-header-content-length": str(len(head))} if octets else {}
    body = head + octets
    if coding:
        body, headers["content-encoding"] = gzip.compress(body), coding
    answer = await server.ask(request(f"/v2/models/{model}/infer", body, **headers))
    assert answer.status == 200, answer.body
    return answer


async def test_large_bools_are_read_in_a_thread(server: Listening, offloaded: list[int]) -> None:
    bools = [number % 3 == 0 for number in range(COUNT * WIDE)]
    given = {"datatype": "BOOL", "shape": [COUNT, WIDE], "data": bools}
    for coding in ("", "gzip"):
        answer = await infer(server, "bool", given, coding=coding)
        assert answer.json()["outputs"][0]["data"] == bools
    assert len(offloaded) >= 2


async def test_large_pictures_are_decoded_in_a_thread(
    server: Listening, offloaded: list[int]
) -> None:
    picture = noise()
    assert len(picture) > 1 << 16
    text = base64.b64encode(picture).decode()
    given: dict[str, object] = {"datatype": "BYTES", "shape": [1]}
    answer = await infer(server, "pictures", {**given, "data": [text]})
    assert len(offloaded) == 1
    framed = struct.pack("<I", len(picture)) + picture
    sized = {**given, "parameters": {"binary_data_size": len(framed)}}
    binary = await infer(server, "pictures", sized, framed)
    assert binary.json()["outputs"] == answer.json()["outputs"]
    assert len(offloaded) == 2
    for _ in range(2):  # the second time it is known, as every repeated body is
        again = await infer(server, "pictures", sized, framed)
    assert again["x-torchlane-cache"].startswith("hit=1")
    assert len(offloaded) == 3
