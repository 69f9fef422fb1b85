"""The Open Inference Protocol over gRPC: every call, and what it rejects."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from google.protobuf.json_format import MessageToDict
from grpc import StatusCode as Code
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2
from PIL import Image

from app.api.oip.grpc.protos import inference_pb2 as pb
from models.codec_specs import TensorCodecSpec
from tests.artifacts import write_artifact
from tests.integration.grpc_calls import (
    HEALTH,
    INFERENCE,
    OCTETS,
    REFLECTION,
    Server,
    numbers,
    refused,
    row,
    serving,
)
from tests.integration.wire import request
from tests.kinds import write_pictures

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double", codec=TensorCodecSpec(labels=("a", "b")))
    write_pictures(folder)
    return folder


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def server(models: Path) -> AsyncIterator[Server]:
    async with serving(models, max_items=10) as it:
        yield it


class TestInfer:
    async def test_the_whole_answer(self, server: Server) -> None:
        message = row()
        message.id = "mine"
        assert await server.infer(message) == pb.ModelInferResponse(
            model_name="double",
            model_version="1",
            id="mine",
            outputs=[{"name": "y", "datatype": "FP32", "shape": [1, 2]}],
            raw_output_contents=[np.array([2, 4], "<f4").tobytes()],
        )

    async def test_metadata_of_an_answer(self, server: Server) -> None:
        asked = server.call(
            f"{INFERENCE}/ModelInfer",
            row(np.array([7, 8], "<f4").tobytes()).SerializeToString(),
            metadata=(("x-request-id", "abc"), ("content-encoding", "br"), ("host", "x")),
        )
        await asked
        found = dict(await asked.trailing_metadata())
        assert found["x-request-id"] == "abc"
        assert found["x-torchlane-cache"] == "hit=0, miss=1, joined=0"
        assert str(found["server-timing"]).startswith("decode;dur=")

    async def test_typed_contents_and_a_named_version(self, server: Server) -> None:
        message = row(None, contents=pb.InferTensorContents(fp32_contents=[1, 2]))
        message.model_version = "1"
        message.outputs.add(name="y")
        assert numbers(await server.infer(message)) == [2, 4]

    async def test_extra_client_parameters_are_accepted(self, server: Server) -> None:
        message = row()
        message.parameters["priority"].uint64_param = 1
        message.parameters["sequence_id"].string_param = "a"
        message.parameters["mine"].double_param = 1.5
        message.parameters["timeout"].int64_param = 10_000_000
        message.inputs[0].parameters["content_type"].string_param = "np"
        assert numbers(await server.infer(message)) == [2, 4]

    async def test_pictures_as_files(self, server: Server) -> None:
        png = io.BytesIO()
        Image.fromarray(np.full((2, 2), 255, np.uint8)).save(png, "png")
        file = png.getvalue()
        wanted = {"name": "picture", "datatype": "BYTES", "shape": [1]}
        typed = pb.InferTensorContents(bytes_contents=[file])
        for message in (
            row(len(file).to_bytes(4, "little") + file, "pictures", **wanted),
            row(None, "pictures", **wanted, contents=typed),
        ):
            assert numbers(await server.infer(message)) == [0, 1]

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"shape": [1, 3]}, "got shape [3]"),
            ({"shape": [11, 2]}, "11 items"),
            ({"octets": None}, "no contents"),
        ],
    )
    async def test_a_wrong_input(self, server: Server, change: dict[str, Any], words: str) -> None:
        await refused(Code.INVALID_ARGUMENT, server.infer(row(**change)), words)

    async def test_other_errors(self, server: Server) -> None:
        await refused(Code.INVALID_ARGUMENT, server.infer(b"\xff"), "malformed")
        await refused(Code.INVALID_ARGUMENT, server.infer(b""), "model_name")
        await refused(Code.NOT_FOUND, server.infer(row(model="none")), "no model")
        for version in ("2", "x"):
            message = row()
            message.model_version = version
            await refused(Code.NOT_FOUND, server.infer(message), "version")
        message = row()
        message.outputs.add(name="q")
        await refused(Code.INVALID_ARGUMENT, server.infer(message), "'q'")
        found = await refused(
            Code.INTERNAL, server.infer(row(np.array([101, 0], "<f4").tobytes())), "model"
        )
        assert found["x-request-id"]

    async def test_grpc_and_http_share_the_cache(self, server: Server) -> None:
        """Equal bytes, and what one has computed the other finds in the cache."""
        before = await server.metric("torchlane_items_computed_total", model="double")
        values = np.array([0.1, -5.5], "<f4")
        head = {
            "inputs": [
                {
                    **{"name": "x", "datatype": "FP32", "shape": [1, 2]},
                    "parameters": {"binary_data_size": 8},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
        text = json.dumps(head).encode()
        answers = await asyncio.gather(
            server.infer(row(values.tobytes())),
            server.listening.ask(
                request(
                    "/v2/models/double/infer",
                    text + values.tobytes(),
                    inference_header_content_length=str(len(text)),
                )
            ),
        )
        assert answers[1].body.endswith(answers[0].raw_output_contents[0])
        assert await server.metric("torchlane_items_computed_total", model="double") == before + 1


class TestOtherCalls:
    async def test_other_calls_match_rest(self, server: Server) -> None:
        for name, fields, path in (
            ("ServerMetadata", {}, "/v2"),
            ("ModelMetadata", {"name": "double"}, "/v2/models/double"),
            ("ModelMetadata", {"name": "double", "version": "1"}, "/v2/models/double"),
            ("ModelConfig", {"name": "pictures"}, "/v2/models/pictures/config"),
            ("ModelStatistics", {"name": "double"}, "/v2/models/double/stats"),
            ("ModelStatistics", {}, "/v2/models/stats"),
        ):
            answer = MessageToDict(
                await server.ask(name, **fields),
                preserving_proto_field_name=True,
                always_print_fields_with_no_presence=True,
            )
            answer = answer.get("config", answer)
            assert _plain(answer) == _plain(await server.rest(path)), name

    async def test_the_repository(self, server: Server) -> None:
        answer = await server.ask("RepositoryIndex", ready=True)
        found = MessageToDict(answer, always_print_fields_with_no_presence=True)["models"]
        assert found == await server.rest("/v2/repository/index", "POST")

    async def test_health(self, server: Server) -> None:
        assert await server.ask("ServerLive") == pb.ServerLiveResponse(live=True)
        assert await server.ask("ServerReady") == pb.ServerReadyResponse(ready=True)
        for name, version in (("double", ""), ("double", "2"), ("z", "")):
            answer = await server.ask("ModelReady", name=name, version=version)
            assert answer == pb.ModelReadyResponse(ready=not version and name == "double")

    async def test_errors(self, server: Server) -> None:
        for name in ("ModelMetadata", "ModelConfig", "ModelStatistics"):
            await refused(Code.NOT_FOUND, server.ask(name, name="none"), "no model 'none'")
        await refused(Code.INVALID_ARGUMENT, server.ask("ModelMetadata"), "missing")
        await refused(
            Code.PERMISSION_DENIED, server.ask("RepositoryModelLoad", model_name="double"), "admin"
        )
        malformed = server.call(f"{INFERENCE}/ModelConfig", b"\xff")
        await refused(Code.INVALID_ARGUMENT, malformed, "malformed")
        long = server.call(f"{INFERENCE}/ModelConfig", b"\x0a" * 70_000)
        await refused(Code.INVALID_ARGUMENT, long, "65536")
        for path in (f"{INFERENCE}/CudaSharedMemoryStatus", "a/b"):
            await refused(Code.UNIMPLEMENTED, server.call(path, b""))

    async def test_stream_of_requests(self, server: Server) -> None:
        stream = server.channel.stream_stream(f"/{INFERENCE}/ModelStreamInfer")()
        for octets in (OCTETS, OCTETS[:4], OCTETS):
            await stream.write(row(octets).SerializeToString())
            answer = pb.ModelStreamInferResponse.FromString(await stream.read())
            if len(octets) < len(OCTETS):
                assert "4 bytes" in answer.error_message
                continue
            assert numbers(answer.infer_response) == [2, 4]
            assert answer.infer_response.parameters["triton_final_response"].bool_param
        stream.cancel()

    async def test_the_standard_health_service(self, server: Server) -> None:
        serving = health_pb2.HealthCheckResponse.SERVING
        for service in ("", INFERENCE):
            asked = health_pb2.HealthCheckRequest(service=service).SerializeToString()
            answer = await server.call(f"{HEALTH}/Check", asked)
            assert health_pb2.HealthCheckResponse.FromString(answer).status == serving
            watch = server.channel.unary_stream(f"/{HEALTH}/Watch")(asked)
            assert health_pb2.HealthCheckResponse.FromString(await watch.read()).status == serving
            watch.cancel()
        unknown = health_pb2.HealthCheckRequest(service="x").SerializeToString()
        await refused(Code.NOT_FOUND, server.call(f"{HEALTH}/Check", unknown))

    async def test_reflection(self, server: Server) -> None:
        asked = reflection_pb2.ServerReflectionRequest(list_services="")
        stream = server.channel.stream_stream(
            f"/{REFLECTION}/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await stream.write(asked)
        found = {each.name for each in (await stream.read()).list_services_response.service}
        assert found == {INFERENCE, HEALTH, REFLECTION}
        asked = reflection_pb2.ServerReflectionRequest(file_containing_symbol=INFERENCE)
        await stream.write(asked)
        assert (await stream.read()).file_descriptor_response.file_descriptor_proto
        await stream.done_writing()


def _plain(value: Any) -> Any:
    """Without the difference between numbers and the strings that int64 becomes in JSON."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return int(value) if isinstance(value, str) and value.lstrip("-").isdigit() else value
