"""Missing values over every protocol: each item has its own, and they change no other answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from app.api.oip.grpc.protos import inference_pb2 as pb
from tests.integration.grpc_calls import Server, numbers, serving
from tests.integration.listening import Listening
from tests.integration.wire import request
from tests.kinds import write_ages, write_cities

pytestmark = pytest.mark.asyncio(loop_scope="module")
NAN = np.array([0x7FC12345], np.uint32).view(np.float32)[0]  # not the usual bits


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def grpc(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    write_ages(folder)
    write_cities(folder)
    async with serving(folder, default_model="ages") as it:
        yield it


@pytest.fixture(scope="module")
def server(grpc: Server) -> Listening:
    return grpc.listening


def rows(answer: Any) -> list[list[float]]:
    return [each["outputs"]["y"] for each in answer.json()["predictions"]]


async def test_null_nan_and_an_absent_key_in_json(server: Listening) -> None:
    items = (
        '{"age": null, "rooms": 2}, {"rooms": 2}, {"age": NaN, "rooms": 2}, {"age": 1, "rooms": 2}'
    )
    body = f'{{"inputs": [{items}, {{}}]}}'.encode()
    answer = await server.ask(request("/batch-predict", body))
    assert rows(answer) == [*[[-1, 2]] * 3, [1, 2], [-1, -1]]
    assert answer["x-torchlane-cache"] == "hit=0, miss=3, joined=2"


@pytest.mark.parametrize("word", ["null", "NaN"])
async def test_open_inference_protocol_in_json(server: Listening, word: str) -> None:
    tensors = [
        f'{{"name": "{name}", "datatype": "FP32", "shape": [2], "data": [{word}, 3]}}'
        for name in ("age", "rooms")
    ]
    body = f'{{"inputs": [{", ".join(tensors)}]}}'.encode()
    answer = await server.ask(request("/v2/models/ages/infer", body))
    assert answer.json()["outputs"][0]["data"] == [-1, -1, 3, 3]


async def test_open_inference_protocol_in_bytes_shares_the_cache(server: Listening) -> None:
    head = {
        "inputs": [
            {
                **{"name": name, "datatype": "FP32", "shape": [1]},
                "parameters": {"binary_data_size": 4},
            }
            for name in ("age", "rooms")
        ]
    }
    text = json.dumps(head).encode()
    octets = np.array([NAN, 77], "<f4").tobytes()
    size = str(len(text))
    answer = await server.ask(
        request("/v2/models/ages/infer", text + octets, inference_header_content_length=size)
    )
    assert answer.json()["outputs"][0]["data"] == [-1, 77]
    again = await server.ask(request("/predict", b'{"input": {"rooms": 77}}'))
    assert again["x-torchlane-cache"] == "hit"


async def test_grpc(grpc: Server) -> None:
    octets = np.array([NAN, 3], "<f4").tobytes()
    tensors = [
        pb.ModelInferRequest.InferInputTensor(name=name, datatype="FP32", shape=[2])
        for name in ("age", "rooms")
    ]
    message = pb.ModelInferRequest(
        model_name="ages", inputs=tensors, raw_input_contents=[octets, octets]
    )
    assert numbers(await grpc.infer(message)) == [-1, -1, 3, 3]
