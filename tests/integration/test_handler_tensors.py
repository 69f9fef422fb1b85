"""Handlers that declare their tensors, by the Open Inference Protocol over REST and gRPC."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import pytest_asyncio

from app.api.oip.grpc import unread
from app.api.oip.grpc.protos import inference_pb2 as pb
from tests.handlers import asks, write_handler
from tests.integration.grpc_calls import Server, numbers, refused, row, serving

TENSORS: Any = {
    "inputs": {"x": "float32[-1,2]"},
    "outputs": {"y": "float32[-1,2]", "n": "int64[-1]"},
}
# What it answers depends on the first number.
SUMS = f"""
import numpy as np
import torchlane

class Sums(torchlane.Handler):
    inputs = {TENSORS["inputs"]}
    outputs = {TENSORS["outputs"]}

    def predict(self, request):
        x = request.tensors["x"]
        assert x.dtype == np.float32
        first, rows = x[0, 0], len(x)
        if first == -1:
            return {{"y": x}}
        if first == -2:
            return torchlane.Response("no", "text/plain", 404)
        if first == -3:
            return {{"y": x * np.nan, "n": [0] * rows}}
        if first == -4:
            raise torchlane.InvalidInput("the picture shows no face")
        if first == -5:
            return {{"y": x.tolist(), "n": [1.5] * rows}}
        return {{"y": x * 2, "n": list(range(rows))}}
"""
PAIRS = """
import time
import torchlane

class Pairs(torchlane.Handler):
    max_batch_size = 4
    inputs = {"x": "float32[-1,2]"}
    outputs = {"y": "float32[-1,2]"}

    def predict_batch(self, requests):
        tensors = [request.tensors["x"] for request in requests]
        if tensors[0][0, 0] == 0:
            time.sleep(0.3)
        return [{"y": x * len(requests)} if x[0, 0] < 9 else {"y": 9} for x in tensors]
"""
PLAIN = """
import torchlane

class Plain(torchlane.Handler):
    def predict(self, request):
        return request.json()
"""
YIELDS = """
import asyncio
import torchlane

class Counts(torchlane.Handler):
    inputs = {"x": "float32[-1,2]"}
    outputs = {"y": "float32[-1]"}
    made = closed = 0

    async def predict(self, request):
        first, rows = map(int, request.tensors["x"][0])
        if first == -4:
            yield {"y": [self.made, self.closed]}
            return
        if first == -5:
            yield {"y": [0]}
            try:
                await asyncio.sleep(60)
            finally:
                self.closed += 1
        if first == -2:
            yield {"y": [0] * rows}
            return
        for number in range(rows):
            if first == -3:
                self.made += 1
                yield {"y": [0] * (16 << 10)}
                continue
            yield {"z" if number == first else "y": [number]}
"""
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"
INFER = "/v2/models/sums/infer"

pytestmark = pytest.mark.asyncio(loop_scope="module")


def tensor(*rows: list[float], **changes: Any) -> dict[str, Any]:
    data = {"name": "x", "datatype": "FP32", "shape": [len(rows), 2], "data": [*rows]}
    return {"inputs": [data | changes]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Server]:
    tmp_path = tmp_path_factory.mktemp("models")
    example = asks({"x": [[1, 2]]}, {"y": [[2, 4]], "n": [0]})
    write_handler(tmp_path, "sums", 1, SUMS, [example], entry="sums:Sums", **TENSORS)
    example = asks({"x": [[1, 2]]}, {"y": [[1, 2]]})
    tensors: dict[str, Any] = {"inputs": {"x": "float32[-1,2]"}, "outputs": {"y": "float32[-1,2]"}}
    tensors |= {"max_batch_size": 4, "concurrency": 1}
    write_handler(tmp_path, "pairs", 1, PAIRS, [example], entry="pairs:Pairs", **tensors)
    write_handler(tmp_path, "plain", 1, PLAIN, [asks(1, 1)], entry="plain:Plain")
    tensors = {"inputs": {"x": "float32[-1,2]"}, "outputs": {"y": "float32[-1]"}}
    example = asks({"x": [[-1, 2]]}, [{"y": [0]}, {"y": [1]}])
    write_handler(
        tmp_path, "counts", 1, YIELDS, [example], entry="counts:Counts", streams=True, **tensors
    )
    settings = {"default_model": "sums", "handlers": "on", "reload_s": 0, "max_items": 8000}
    async with serving(tmp_path, **settings) as served:
        yield served
        served.listening.asgi.clear()


async def posted(
    server: Server, content: bytes | dict[str, Any], path: str = INFER, **headers: str
) -> httpx.Response:
    return await server.post(path, content, **headers)


async def test_rest(server: Server) -> None:
    for path in (INFER, "/v2/models/sums/versions/1/infer"):
        answer = await posted(server, tensor([1, 2], [3, 4]) | {"id": "7"}, path)
        assert answer.json() == {
            "id": "7",
            "model_name": "sums",
            "model_version": "1",
            "outputs": [
                {"name": "y", "datatype": "FP32", "shape": [2, 2], "data": [2, 4, 6, 8]},
                {"name": "n", "datatype": "INT64", "shape": [2], "data": [0, 1]},
            ],
        }
    native = await posted(server, {"x": [[1, 2], [3, 4]]}, "/models/sums/predict")
    assert native.json() == {"y": [[2, 4], [6, 8]], "n": [0, 1]}


@pytest.mark.parametrize("rows", [2, 7000])  # the second ones are read, and checked, in threads
async def test_binary_tensors(server: Server, rows: int) -> None:
    octets = np.arange(2 * rows, dtype="<f4").tobytes()
    sized = {"shape": [rows, 2], "parameters": {"binary_data_size": len(octets)}}
    asked = tensor(**sized) | {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
    del asked["inputs"][0]["data"]
    head = json.dumps(asked).encode()
    whole = {"content-length": str(len(octets)), "inference-header-content-length": "0"}
    for answer, shown in (
        (
            await posted(
                server, head + octets, **{"Inference-Header-Content-Length": str(len(head))}
            ),
            1,
        ),
        (await posted(server, octets, **whole), 2),
    ):
        assert answer.status_code == 200, answer.text
        at = int(answer.headers["inference-header-content-length"])
        outputs = json.loads(answer.content[:at])["outputs"]
        assert len(outputs) == shown
        assert outputs[0]["parameters"] == {"binary_data_size": len(octets)}
        values = np.frombuffer(answer.content[at : at + len(octets)], "<f4")
        assert np.array_equal(values, 2 * np.arange(2 * rows))
    assert server.listening.service.bodies.held == server.listening.service.answers.held == 0


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (tensor([1, 2], name="z"), "expected exactly the inputs ['x'], got ['z']"),
        (tensor([1, 2], datatype="INT64"), "input 'x' has the datatype 'INT64'"),
        (tensor([1, 2], shape=[1, 3]), "'x': expected float32 of shape [2], got shape [3]"),
        (tensor([1, 2], shape=[0, 2]), "the first axis, which counts the items, is 0"),
        (tensor([1, 2], data=[1, 1e300]), "item 0: 'x': NaN, infinity, or a number too large"),
        (tensor([1, 2]) | {"outputs": [{"name": "z"}]}, "there is no output 'z'"),
        (
            tensor([1, 2]) | {"outputs": [{"name": "y", "parameters": {"classification": 1}}]},
            "handlers have no classification",
        ),
        (tensor([-4, 2]), "the picture shows no face"),
        (b"{", "the JSON is malformed"),
    ],
)
async def test_wrong_requests(server: Server, asked: Any, why: str) -> None:
    answer = await posted(server, asked)
    assert answer.status_code == 400
    assert why in answer.json()["error"]


@pytest.mark.parametrize(
    ("first", "why"),
    [
        (-1, "the handler's answer must have exactly 'y', 'n', got 'y'"),
        (-2, "the handler's answer must have arrays or lists by name"),
        (
            -3,
            "'y': expected float32[-1,2], got NaN, infinity or a number",
        ),
        (-5, "'n': expected int64[-1], got values of float64"),
    ],
)
async def test_outputs_that_differ_are_the_handlers_mistake(
    server: Server, first: int, why: str
) -> None:
    before = await server.metric("torchlane_requests_total", code="handler_outputs")
    answer = await posted(server, tensor([first, 0]))
    assert answer.status_code == 500
    assert why in answer.json()["error"]
    assert await server.metric("torchlane_requests_total", code="handler_outputs") == before + 1
    octets = np.array([first, 0], "<f4").tobytes()
    await refused(grpc.StatusCode.INTERNAL, server.infer(row(octets, "sums")), why)


async def test_too_many_items_and_unwanted_answers(server: Server) -> None:
    many = await posted(server, tensor(*[[1.0, 2.0]] * 8001))
    assert many.status_code == 413
    asked = tensor([1, 2]) | {"parameters": {"binary_data_output": True}}
    assert (await posted(server, asked, accept="application/json")).status_code == 406


async def test_grpc(server: Server) -> None:
    octets = np.array([[1, 2], [3, 4]], "<f4").tobytes()
    answer = await server.infer(row(octets, "sums", shape=[2, 2]))
    assert (answer.model_name, answer.model_version) == ("sums", "1")
    y, n = answer.raw_output_contents
    assert [each.name for each in answer.outputs] == ["y", "n"]
    assert np.frombuffer(y, "<f4").tolist() == [2, 4, 6, 8]
    assert np.frombuffer(n, "<i8").tolist() == [0, 1]
    request = row(octets, "sums", shape=[2, 2])
    request.outputs.add(name="y")
    assert numbers(await server.infer(request)) == [2, 4, 6, 8]
    wrong = server.infer(row(octets, "sums"))
    await refused(grpc.StatusCode.INVALID_ARGUMENT, wrong, "16 bytes")


async def test_requests_of_a_batch_are_checked_one_by_one(server: Server) -> None:
    path = "/v2/models/pairs/infer"
    first = asyncio.create_task(posted(server, tensor([0, 1]), path))
    await asyncio.sleep(0.1)  # those that come now wait, and are run together
    answers = await asyncio.gather(
        *(
            posted(server, tensor(*rows), path)
            for rows in ([[1.0, 2]], [[9.0, 2]], [[1.0, 2], [3.0, 4]])
        )
    )
    assert (await first).json()["outputs"][0]["data"] == [0, 1]
    one, wrong, two = (each.json() for each in answers)
    assert one["outputs"][0]["data"] == [3, 6]
    assert "'y': expected float32[-1,2], got the shape []" in wrong["error"]
    assert (two["outputs"][0]["shape"], two["outputs"][0]["data"]) == ([2, 2], [3, 6, 9, 12])


async def test_metadata_and_readiness(server: Server) -> None:
    shown = {
        "name": "sums",
        "versions": ["1"],
        "platform": "python",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "n", "datatype": "INT64", "shape": [-1]},
        ],
    }
    assert await server.rest("/v2/models/sums") == shown
    metadata = await server.ask("ModelMetadata", name="sums")
    assert isinstance(metadata, pb.ModelMetadataResponse)
    assert [each.name for each in metadata.outputs] == ["y", "n"]
    assert await server.rest("/v2/models/sums/ready") == {"name": "sums", "ready": True}
    assert await server.ask("ModelReady", name="sums") == pb.ModelReadyResponse(ready=True)
    assert [each["name"] for each in (await server.rest("/models/sums"))["inputs"]] == ["x"]


async def test_configuration_and_statistics(server: Server) -> None:
    config = await server.rest("/v2/models/sums/config")
    assert (config["backend"], config["max_batch_size"]) == ("python", 8000)
    assert [each["dims"] for each in (*config["input"], *config["output"])] == [[2], [2], []]
    assert config["instance_group"][0]["count"] == 1
    told = await server.ask("ModelConfig", name="counts")
    assert isinstance(told, pb.ModelConfigResponse)
    assert told.config.model_transaction_policy.decoupled
    assert not config["model_transaction_policy"]["decoupled"]

    async def counted(path: str) -> tuple[int, int, int]:
        (of_it,) = [
            each for each in (await server.rest(path))["model_stats"] if each["name"] == "pairs"
        ]
        parts = of_it["inference_stats"]
        return of_it["inference_count"], parts["success"]["count"], parts["fail"]["count"]

    before = await counted("/v2/models/pairs/stats")
    assert (await posted(server, tensor([1, 2]), "/v2/models/pairs/infer")).status_code == 200
    assert (await posted(server, tensor([9, 2]), "/v2/models/pairs/infer")).status_code == 500
    after = await counted("/v2/models/stats")
    assert [now - then for now, then in zip(after, before, strict=True)] == [1, 1, 1]
    answer = await server.ask("ModelStatistics", name="pairs")
    assert isinstance(answer, pb.ModelStatisticsResponse)
    assert answer.model_stats[0].inference_count == after[0]
    assert answer.model_stats[0].inference_stats.success.ns > 0


async def test_handler_without_declarations_is_not_found(server: Server) -> None:
    told = "if its class declares `inputs` and `outputs`"
    for path in ("", "/ready", "/config", "/stats"):
        assert told in (await server.rest(f"/v2/models/plain{path}"))["error"]
    answer = await posted(server, tensor([1, 2]), "/v2/models/plain/infer")
    assert (answer.status_code, told in answer.json()["error"]) == (404, True)
    await refused(grpc.StatusCode.NOT_FOUND, server.infer(row(model="plain")), told)


async def test_each_item_of_a_stream_is_an_answer(server: Server) -> None:
    before = await server.metric("torchlane_requests_total", route=STREAM, code="ok")
    stream = opened(server)
    last = pb.InferParameter(bool_param=True)
    for name, numbers_of_it in (("a", [0, 1, 2]), ("b", [0])):  # one request after the other
        request = counts(-1, len(numbers_of_it), name)
        request.parameters["triton_enable_empty_final_response"].CopyFrom(last)
        await stream.write(request.SerializeToString())
        *items, end = [await told(stream) for _ in range(len(numbers_of_it) + 1)]
        assert [numbers(each.infer_response) for each in items] == [[n] for n in numbers_of_it]
        for each in items:
            assert each.infer_response.id == name
            assert not each.infer_response.parameters["triton_final_response"].bool_param
        assert (end.infer_response.id, [*end.infer_response.outputs]) == (name, [])
        assert end.infer_response.parameters["triton_final_response"].bool_param
    await stream.write(counts(-1, 1).SerializeToString())
    await stream.done_writing()
    assert numbers((await told(stream)).infer_response) == [0]
    assert await stream.read() is grpc.aio.EOF
    assert await stream.code() == grpc.StatusCode.OK
    assert await server.metric("torchlane_requests_total", route=STREAM, code="ok") == before + 3


async def test_large_item_of_a_stream(server: Server) -> None:
    stream = opened(server)
    await stream.write(counts(-2, 100_000).SerializeToString())
    assert len(numbers((await told(stream)).infer_response)) == 100_000


async def test_failure_of_a_request_does_not_end_its_stream(server: Server) -> None:
    stream = opened(server)
    wrong = counts(-1, 1, "c")
    wrong.inputs[0].name = "z"
    for request, why in (
        (wrong, "expected exactly the inputs ['x']"),
        (row(model="plain"), "if its class declares"),
        (row(model="none"), "there is no model 'none'"),
        (counts(0, 1, "c"), "the handler's answer must have exactly 'y', got 'z'"),
    ):
        await stream.write(request.SerializeToString())
        answer = await told(stream)
        assert why in answer.error_message
        assert answer.infer_response.id == request.id
    await stream.write(counts(1, 2, "d").SerializeToString())  # fails after its first item
    assert numbers((await told(stream)).infer_response) == [0]
    assert "got 'z'" in (await told(stream)).error_message
    await stream.write(row(model="sums").SerializeToString())
    answer = await told(stream)
    assert answer.infer_response.parameters["triton_final_response"].bool_param
    assert len(answer.infer_response.outputs) == 2


async def test_client_that_leaves_or_does_not_read_stops_the_handler(server: Server) -> None:
    stream = opened(server)
    await stream.write(counts(-3, 1_000_000).SerializeToString())  # each item of 64 KiB
    await told(stream)
    before = 0
    while before < await made(server):  # until buffers are full
        before = await made(server)
        await asyncio.sleep(0.3)
    assert before < 1000
    assert await server.metric("torchlane_requests_in_flight") == 1
    stream.cancel()
    async with asyncio.timeout(10):
        while await server.metric("torchlane_requests_in_flight"):
            await asyncio.sleep(0.01)
    before = await made(server)
    await asyncio.sleep(0.3)
    assert await made(server) == before


async def test_client_that_does_not_read_is_cut(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unread, "PATIENCE_S", 0.3)
    stream = opened(server)
    await stream.write(counts(-3, 1_000_000).SerializeToString())
    async with asyncio.timeout(20):
        while not await server.metric("torchlane_connections_cut_total", code="answer_unread"):
            await asyncio.sleep(0.05)
        while await server.metric("torchlane_requests_in_flight"):
            await asyncio.sleep(0.01)
        with pytest.raises(grpc.aio.AioRpcError, match="does not read its answers"):
            [each async for each in stream]


def counts(first: float, second: float, name: str = "") -> pb.ModelInferRequest:
    request = row(np.array([first, second], "<f4").tobytes(), "counts")
    request.id = name
    return request


def opened(server: Server) -> Any:
    return server.channel.stream_stream(STREAM)()


async def told(stream: Any) -> pb.ModelStreamInferResponse:
    return pb.ModelStreamInferResponse.FromString(await stream.read())


async def made(server: Server) -> int:
    """How many items the handler has yielded to streams of large ones."""
    return (await made_and_closed(server))[0]


async def made_and_closed(server: Server) -> tuple[int, int]:
    answer = await posted(
        server, {"x": [[-4, 1]]}, "/models/counts/predict", accept="application/json"
    )
    (item,) = answer.json()
    first, second = map(int, item["y"])
    return first, second


async def test_cancelled_stream_closes_a_generator_that_computes(server: Server) -> None:
    _, before = await made_and_closed(server)
    stream = opened(server)
    await stream.write(counts(-5, 0).SerializeToString())
    await told(stream)
    stream.cancel()
    async with asyncio.timeout(20):
        while (await made_and_closed(server))[1] == before:
            await asyncio.sleep(0.005)
    assert await server.metric("torchlane_requests_in_flight") == 0


async def test_handler_that_yields_has_more_than_one_answer(server: Server) -> None:
    answer = await posted(server, tensor([-1, 2]), "/v2/models/counts/infer")
    assert answer.status_code == 400
    assert "yields its answer, of which this call can have only one" in answer.json()["error"]
    await refused(grpc.StatusCode.INVALID_ARGUMENT, server.infer(row(model="counts")), "yields")
