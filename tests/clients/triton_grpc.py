"""tritonclient over gRPC. Arguments: host and port, a folder with pictures."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
from tritonclient import grpc
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.clients.checking import run_checks
from tests.clients.typed import TYPED

X = np.array([[1, 2]], np.float32)
NOT_FOUND, INVALID = "StatusCode.NOT_FOUND", "StatusCode.INVALID_ARGUMENT"


def tensor(array: Any, name: str = "x") -> Any:
    """An input, in raw_input_contents."""
    made = grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array)


def refused(call: Any, *given: Any, **named: Any) -> tuple[str, str]:
    """The status and message of an error."""
    try:
        call(*given, **named)
    except InferenceServerException as error:
        return error.status(), error.message()
    raise AssertionError("no error")


def check_health(client: Any, _: Path) -> None:
    assert client.is_server_live() is client.is_server_ready() is True
    assert client.is_model_ready("double") is client.is_model_ready("double", "1") is True
    assert client.is_model_ready("double", "9") is client.is_model_ready("none") is False


def check_what_is_said_of_models(client: Any, _: Path) -> None:
    found = client.get_model_metadata("double", as_json=True)
    assert found["versions"] == ["1", "2"], found
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": ["-1", "2"]}], found
    config = client.get_model_config("double", "1", as_json=True)["config"]
    assert config["max_batch_size"] == 64, config
    assert config["input"][0]["data_type"] == "TYPE_FP32", config
    assert config["input"][0]["dims"] == ["2"], config
    server = client.get_server_metadata()
    assert set(server.extensions) >= {"binary_tensor_data", "statistics"}, server
    index = client.get_model_repository_index().models
    assert ("double", "2", "READY") in {(each.name, each.version, each.state) for each in index}


def check_infer(client: Any, _: Path) -> None:
    made = client.infer("double", [tensor(X)], request_id="7", priority=2, timeout=20_000_000)
    answer = made.get_response()
    assert (answer.model_name, answer.model_version, answer.id) == ("double", "2", "7")
    assert len(answer.raw_output_contents) == 1
    np.testing.assert_array_equal(made.as_numpy("y"), X * 2)
    parameters = {"own": "x", "number": 1.5, "flag": True, "count": 3}
    sequence = {"sequence_id": "s", "sequence_start": True, "sequence_end": True}
    for how in (None, "gzip", "deflate"):
        made = client.infer(
            "double", [tensor(X)], compression_algorithm=how, parameters=parameters, **sequence
        )
        np.testing.assert_array_equal(made.as_numpy("y"), X * 2)


def check_every_datatype(client: Any, _: Path) -> None:
    for name, array in TYPED.items():
        found = client.infer(name, [tensor(array)]).as_numpy("x")
        assert (found.dtype, found.tobytes()) == (array.dtype, array.tobytes()), name


def check_pictures_and_classification(client: Any, folder: Path) -> None:
    files = [(folder / name).read_bytes() for name in ("dark.png", "light.jpg")]
    raw = np.array(files, np.object_)
    wanted = [grpc.InferRequestedOutput("scores", class_count=1)]
    found = client.infer("pictures", [tensor(raw, "picture")], outputs=wanted).as_numpy("scores")
    assert [text.split(b":")[1:] for text in found.ravel()] == [[b"0", b"dark"], [b"1", b"light"]]
    assert found.shape == (2, 1)


def check_texts_and_other_bytes_of_a_handler(client: Any, _: Path) -> None:
    given = np.array([["é", "b"], [b"\xff\0", b"\0"]], np.object_)
    found = client.infer("joined", [tensor(given, "text")]).as_numpy("joined")
    assert [*found] == ["éb".encode(), b"\xff\0\0"], found
    config = client.get_model_config("joined", as_json=True)["config"]
    assert config["input"][0]["data_type"] == "TYPE_STRING", config


def check_errors(client: Any, _: Path) -> None:
    for call in (
        client.get_model_metadata,
        client.get_model_config,
        client.get_inference_statistics,
    ):
        assert refused(call, "none")[0] == NOT_FOUND
    assert refused(client.infer, "none", [tensor(X)])[0] == NOT_FOUND
    assert refused(client.infer, "double", [tensor(X)], "9")[0] == NOT_FOUND
    outputs = [grpc.InferRequestedOutput("q")]
    assert refused(client.infer, "double", [tensor(X)], outputs=outputs)[0] == INVALID
    np.testing.assert_array_equal(client.infer("double", [tensor(X)]).as_numpy("y"), X * 2)


def check_the_timeout_is_a_deadline_in_microseconds(client: Any, _: Path) -> None:
    status, said = refused(client.infer, "double", [tensor(X * 5)], timeout=1)
    assert status in {"StatusCode.DEADLINE_EXCEEDED", "StatusCode.RESOURCE_EXHAUSTED"}, said


def check_callbacks(client: Any, _: Path) -> None:
    found: list[Any] = []
    done = threading.Event()

    def ended(result: Any, error: Any) -> None:
        found.append(error or result.as_numpy("y"))
        if len(found) == 20:
            done.set()

    for number in range(20):
        client.async_infer("double", [tensor(X * number)], ended)
    assert done.wait(20), found
    wanted = [(X * number * 2).tolist() for number in range(20)]
    assert sorted(each.tolist() for each in found) == wanted


def main() -> None:
    target, folder = sys.argv[1:]
    run_checks(globals(), grpc.InferenceServerClient(target), Path(folder))


if __name__ == "__main__":
    main()
