"""Handlers whose tensors are texts and other bytes, over REST and gRPC, and natively."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import pytest_asyncio

from app.api.oip.grpc.protos import inference_pb2 as pb
from app.codecs.elements import join_bytes, split_bytes
from tests.handlers import NPZ, Example, asks, write_handler
from tests.integration.grpc_calls import INFERENCE, Server, refused, serving

TENSORS: Any = {
    "inputs": {"text": "bytes[-1,2]", "times": "int64[-1]"},
    "outputs": {"joined": "bytes[-1]", "sizes": "int64[-1,2]"},
}
JOINS = f"""
import numpy as np
import torchlane

class Joins(torchlane.Handler):
    inputs = {TENSORS["inputs"]}
    outputs = {TENSORS["outputs"]}

    def predict(self, request):
        texts, times = (request.tensors[name] for name in ("text", "times"))
        assert all(type(each) is bytes for each in texts.ravel())
        joined = [(a + b) * n for (a, b), n in zip(texts, times)]
        if joined == [b"text"]:
            joined = ["t\\u00e9xt"]  # a str becomes UTF-8
        if joined == [b"one"]:
            joined = [1]
        sizes = [[len(each) for each in row] for row in texts]
        return {{"joined": np.array(joined, object), "sizes": sizes}}
"""
WORDS = """
import torchlane

class Words(torchlane.Handler):
    inputs = {"text": "bytes[-1]"}
    outputs = {"word": "bytes[-1]"}

    def predict(self, request):
        (text,) = request.tensors["text"]
        for word in text.split(b" "):
            yield {"word": [word]}
"""
WHOLE = """
import torchlane

class Whole(torchlane.Handler):
    inputs = {"text": "bytes[-1]"}
    outputs = {"size": "int64[-1]"}

    def predict(self, request):
        return {"size": [len(each) for each in request.tensors["text"]]}
"""
INFER = "/v2/models/joins/infer"
HEADER = "inference-header-content-length"
TEXTS = [["a", "é"], ["", "d"]]
FLAT = [each.encode() for row in TEXTS for each in row]
RAW = b"\xff\x00\x80"  # not UTF-8

pytestmark = pytest.mark.asyncio(loop_scope="module")


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def octets(*elements: bytes) -> Any:
    return np.frombuffer(join_bytes(elements), np.uint8)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    tmp_path = tmp_path_factory.mktemp("models")
    answer = {"joined": ["aé", "dd"], "sizes": [[1, 2], [0, 1]]}
    examples = [
        asks({"text": TEXTS, "times": [1, 2]}, answer),
        Example(
            npz(text=np.array(TEXTS), times=[1, 2]), json.dumps(answer).encode(), media_type=NPZ
        ),
    ]
    write_handler(tmp_path, "joins", 1, JOINS, examples, entry="joins:Joins", **TENSORS)
    example = asks({"text": ["a b"]}, [{"word": ["a"]}, {"word": ["b"]}])
    tensors: dict[str, Any] = {"inputs": {"text": "bytes[-1]"}, "outputs": {"word": "bytes[-1]"}}
    write_handler(
        tmp_path, "words", 1, WORDS, [example], entry="words:Words", streams=True, **tensors
    )
    tensors = {"inputs": {"text": "bytes[-1]"}, "outputs": {"size": "int64[-1]"}}
    example = asks({"text": ["a"]}, {"size": [1]})
    write_handler(tmp_path, "whole", 1, WHOLE, [example], entry="whole:Whole", **tensors)
    async with serving(tmp_path, default_model="joins", handlers="on", reload_s=0) as served:
        yield served
        served.listening.asgi.clear()


async def posted(
    server: Server, content: bytes | dict[str, Any], path: str = INFER, **headers: str
) -> httpx.Response:
    return await server.post(path, content, **headers)


def asked(text: Any, *times: int, **more: Any) -> dict[str, Any]:
    """A request in JSON."""
    count = len(times)
    return {
        "inputs": [
            {"name": "text", "datatype": "BYTES", "shape": [count, 2], "data": text},
            {"name": "times", "datatype": "INT64", "shape": [count], "data": times},
        ],
        **more,
    }


async def in_binary(server: Server, elements: list[bytes], *times: int) -> httpx.Response:
    """The answer to a request whose tensors are bytes, as those of the answer."""
    parts = join_bytes(elements), np.array(times, "<i8").tobytes()
    document = asked([], *times, parameters={"binary_data_output": True})
    for each, part in zip(document["inputs"], parts, strict=True):
        del each["data"]
        each["parameters"] = {"binary_data_size": len(part)}
    head = json.dumps(document).encode()
    return await posted(server, head + b"".join(parts), **{HEADER: str(len(head))})


def joined_in(answer: httpx.Response) -> list[bytes]:
    """The first output of an answer in bytes."""
    at = int(answer.headers[HEADER])
    output, _ = json.loads(answer.content[:at])["outputs"]
    assert (output["name"], output["datatype"]) == ("joined", "BYTES")
    octets = memoryview(answer.content)[at : at + output["parameters"]["binary_data_size"]]
    return split_bytes("joined", octets, *output["shape"])


@pytest.mark.parametrize("text", [TEXTS, [each for row in TEXTS for each in row]])
async def test_json(server: Server, text: Any) -> None:
    answer = await posted(server, asked(text, 1, 2))
    assert answer.json()["outputs"] == [
        {"name": "joined", "datatype": "BYTES", "shape": [2], "data": ["aé", "dd"]},
        {"name": "sizes", "datatype": "INT64", "shape": [2, 2], "data": [1, 2, 0, 1]},
    ]
    answer = await posted(server, asked(["te", "xt"], 1))
    assert answer.json()["outputs"][0]["data"] == ["téxt"]


async def test_binary_tensors(server: Server) -> None:
    assert joined_in(await in_binary(server, FLAT, 1, 2)) == ["aé".encode(), b"dd"]
    assert joined_in(await in_binary(server, [RAW, RAW], 2)) == [RAW * 4]


async def test_whole_body_is_the_only_text(server: Server) -> None:
    answer = await posted(server, RAW, "/v2/models/whole/infer", **{HEADER: "0"})
    assert np.frombuffer(answer.content[-8:], "<i8").tolist() == [len(RAW)]
    answer = await posted(server, RAW, **{HEADER: "0"})
    assert "the handler has no such input" in answer.json()["error"]


@pytest.mark.parametrize("times", [4, 20_000])  # an answer that is checked at once; in a thread
async def test_json_has_no_bytes_that_are_not_utf_8(server: Server, times: int) -> None:
    size = len(RAW) * 2
    document = asked([], times)
    document["inputs"][0].pop("data")
    octets = join_bytes([RAW, RAW])
    document["inputs"][0]["parameters"] = {"binary_data_size": len(octets)}
    head = json.dumps(document).encode()
    answer = await posted(server, head + octets, **{HEADER: str(len(head))})
    assert answer.status_code == 406
    assert "'joined' is not UTF-8, which JSON needs; request it as binary" in answer.text
    assert len(joined_in(await in_binary(server, [RAW, RAW], times))[0]) == size * times


async def test_large_texts(server: Server) -> None:
    texts = ['é"' * 1000, ""]
    answer = await posted(server, asked([texts, texts], 50, 1))
    assert answer.json()["outputs"][0]["data"] == [texts[0] * 50, texts[0]]
    whole = [each.encode() for each in texts]
    assert joined_in(await in_binary(server, whole * 2, 1, 50))[1] == whole[0] * 50
    assert server.listening.service.bodies.held == server.listening.service.answers.held == 0


async def test_native_calls(server: Server) -> None:
    expected = {"joined": ["aé", "dd"], "sizes": [[1, 2], [0, 1]]}
    path = "/models/joins/predict"
    assert (await posted(server, {"text": TEXTS, "times": [1, 2]}, path)).json() == expected
    for text in (np.array(TEXTS), octets(*FLAT)):
        body = npz(text=text, times=[1, 2])
        assert (await posted(server, body, path, **{"content-type": NPZ})).json() == expected
    pickled = npz(text=np.array(TEXTS, object), times=[1, 2])
    answer = await posted(server, pickled, path, **{"content-type": NPZ})
    assert answer.status_code == 422
    body = npz(text=octets(RAW, RAW), times=[1])
    answer = await posted(server, body, path, **{"content-type": NPZ})
    assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")
    assert "call the handler by the Open Inference Protocol" in answer.json()["error"]
    body = npz(text=octets(b"\xff a"))
    answer = await posted(server, body, "/models/words/predict", **{"content-type": NPZ})
    assert (answer.status_code, answer.json()["code"]) == (406, "not_acceptable")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (["a"], "1 elements for the shape [1, 2]"),
        (["a", 1], "each element of BYTES is a string, got a number"),
    ],
)
async def test_wrong_requests(server: Server, text: Any, why: str) -> None:
    answer = await posted(server, asked(text, 1))
    assert (answer.status_code, why in answer.json()["error"]) == (400, True)


async def test_outputs_that_differ_are_the_handlers_mistake(server: Server) -> None:
    answer = await posted(server, asked(["on", "e"], 1))
    assert (answer.status_code, answer.json()["error"]) == (
        500,
        "'joined': expected bytes[-1], got a value of type int; use str or bytes",
    )


def message(model: str, name: str, elements: list[bytes], *shape: int) -> pb.ModelInferRequest:
    """A request with typed contents."""
    request = pb.ModelInferRequest(model_name=model)
    tensor = request.inputs.add(name=name, datatype="BYTES", shape=shape)
    tensor.contents.bytes_contents.extend(elements)
    return request


async def test_grpc(server: Server) -> None:
    typed = message("joins", "text", FLAT, 2, 2)
    times = typed.inputs.add(name="times", datatype="INT64", shape=[2])
    times.contents.int64_contents.extend([1, 2])
    raw = pb.ModelInferRequest()
    raw.CopyFrom(typed)
    for each in raw.inputs:
        each.ClearField("contents")
    raw.raw_input_contents.extend([join_bytes(FLAT), np.array([1, 2], "<i8").tobytes()])
    for request in (typed, raw):
        answer = await server.infer(request)
        joined, sizes = answer.raw_output_contents
        assert split_bytes("joined", memoryview(joined), 2) == ["aé".encode(), b"dd"]
        assert np.frombuffer(sizes, "<i8").tolist() == [1, 2, 0, 1]
        assert (answer.outputs[0].datatype, [*answer.outputs[0].shape]) == ("BYTES", [2])
    raw.raw_input_contents[0] = raw.raw_input_contents[0][:-1]
    wrong = server.infer(raw)
    await refused(grpc.StatusCode.INVALID_ARGUMENT, wrong, "element 3 claims 1 bytes, 0 are left")


async def test_stream(server: Server) -> None:
    stream = server.channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")()
    await stream.write(message("words", "text", [b"she \xff shells"], 1).SerializeToString())
    for word in (b"she", b"\xff", b"shells"):
        answer = pb.ModelStreamInferResponse.FromString(await stream.read()).infer_response
        assert split_bytes("word", memoryview(answer.raw_output_contents[0]), 1) == [word]
    await stream.done_writing()


async def test_metadata_and_configuration(server: Server) -> None:
    metadata = await server.rest("/v2/models/joins")
    assert metadata["inputs"][0] == {"name": "text", "datatype": "BYTES", "shape": [-1, 2]}
    assert metadata["outputs"][0] == {"name": "joined", "datatype": "BYTES", "shape": [-1]}
    config = await server.rest("/v2/models/joins/config")
    assert (config["input"][0]["data_type"], config["input"][0]["dims"]) == ("TYPE_STRING", [2])
    told = await server.ask("ModelConfig", name="joins")
    assert isinstance(told, pb.ModelConfigResponse)
    assert told.config.output[0].data_type == pb.TYPE_STRING
