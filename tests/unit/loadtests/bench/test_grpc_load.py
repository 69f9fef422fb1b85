"""Load by gRPC: messages that others read, and figures of what was sent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import grpc
import numpy as np
import pytest

from app.api.oip.grpc.protos.inference_pb2 import ModelInferRequest, ModelInferResponse
from loadtests.bench import grpc_load, protobuf
from loadtests.bench.bodies import bodies_of
from loadtests.bench.dialects import AnswerError, dialect_of
from loadtests.bench.workloads import OURS, PYTRITON, WORKLOADS
from loadtests.bench.wrk import LoadPlan
from loadtests.wire import Response
from models.manifest import MANIFEST_FILE, Manifest
from tests.artifacts import write_artifact

(SINGLE,) = (workload for workload in WORKLOADS if workload.body == "grpc")
WRONG = b"\xff" * 4  # in the first place of an item that the server shall fail on


@pytest.fixture
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    folder = write_artifact(tmp_path_factory.mktemp("models"), "double")  # float32 [2]
    return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())


@pytest.fixture
def port() -> Iterator[int]:
    """A server that answers each infer call with its raw input, and fails on some."""

    def infer(message: bytes, context: grpc.ServicerContext) -> bytes:
        raw = ModelInferRequest.FromString(message).raw_input_contents
        if WRONG in raw[0]:
            context.abort(grpc.StatusCode.INTERNAL, "on purpose")
        return ModelInferResponse(raw_output_contents=raw, model_name="m").SerializeToString()

    service, method = grpc_load.METHOD.strip("/").split("/")
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(infer)
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
    found = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield found
    server.stop(0).wait()


@pytest.mark.parametrize(
    ("server", "model", "name"), [(OURS, "double", "x"), (PYTRITON, "model", "input")]
)
def test_request_is_a_complete_message(
    manifest: Manifest, server: str, model: str, name: str
) -> None:
    bodies = bodies_of(SINGLE, manifest, dialect_of(server, SINGLE, manifest), 0)
    for number in (0, 300, bodies.known_from):
        message = ModelInferRequest.FromString(bodies.request(number))
        (tensor,) = message.inputs
        assert (message.model_name, tensor.name, tensor.datatype) == (model, name, "FP32")
        found = np.frombuffer(message.raw_input_contents[0], "<f4").reshape(tensor.shape)
        np.testing.assert_array_equal(found, bodies.inputs(number))


def test_scores_are_the_raw_output(manifest: Manifest) -> None:
    dialect = dialect_of(OURS, SINGLE, manifest)
    scores = np.array([0.25, 0.75], np.float32)
    answer = ModelInferResponse(
        model_name="m" * 200, id="7", raw_output_contents=[scores.tobytes()]
    )
    answer.outputs.add(name="y", datatype="FP32", shape=[1, 2])
    found = dialect.scores(answer.SerializeToString(), many=False)
    np.testing.assert_array_equal(found, [scores])
    for wrong in (b"", b"\x08\x01", ModelInferResponse(id="7").SerializeToString(), b"\x32\x7f1"):
        with pytest.raises(AnswerError):
            dialect.scores(wrong, many=False)


@pytest.mark.parametrize("number", [0, 127, 128, 300, 2**40])
def test_varint_has_seven_bits_per_byte(number: int) -> None:
    (content,) = (each for _, each in protobuf.fields(protobuf.field(1, b"x" * min(number, 300))))
    assert len(content) == min(number, 300)
    tensor = ModelInferRequest.InferInputTensor.FromString(
        protobuf.field(protobuf.SHAPE, protobuf.varint(number))
    )
    assert list(tensor.shape) == [number]


class Draws:
    """Requests that know what was answered."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._messages = iter(messages)

    def draw(self) -> bytes:
        return next(self._messages)

    def problems(self, responses: Sequence[Response | None]) -> list[str | None]:
        return [str(each.status) if each else None for each in responses]


def test_answers_are_judged_and_errors_are_reported(port: int) -> None:
    raw = protobuf.infer_head("m", "x", (1, 1), 4)
    found = grpc_load.problems(port, Draws([raw + b"1234", raw + WRONG]), np.zeros(2))
    assert found == ["200", "500"]


def test_load_reports_what_it_sent(port: int, manifest: Manifest) -> None:
    bodies = bodies_of(SINGLE, manifest, dialect_of(OURS, SINGLE, manifest), 0)
    with grpc_load.loading(port, bodies, 7, LoadPlan(3, 1)) as load:
        run = load()
    assert run.sent == run.answered > 10
    assert (run.not_200, run.seconds >= 1, 0 < run.p50_ms <= run.p99_ms) == (0, True, True)
