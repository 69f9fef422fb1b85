"""tritonclient over HTTP. Arguments: `sync` or `aio`, host and port, a folder with pictures."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from tritonclient import http
from tritonclient.http import aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.clients.checking import Synchronous, run_checks
from tests.clients.typed import TYPED

X = np.array([[1, 2]], np.float32)


def tensor(array: Any, name: str = "x", *, binary: bool = True) -> Any:
    """An input."""
    made = http.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    return made.set_data_from_numpy(array, binary_data=binary)


def output(name: str = "y", **how: Any) -> Any:
    """An output that is asked for."""
    return http.InferRequestedOutput(name, **how)


def refused(call: Any, *given: Any, **named: Any) -> tuple[str, str]:
    """The status and message of an error; the message is what the server said."""
    try:
        call(*given, **named)
    except InferenceServerException as error:
        status, said = error.status(), error.message()
    else:
        raise AssertionError("no error")
    assert not said.startswith("an exception occurred"), said
    return status, said


def check_health(client: Any, _: Path) -> None:
    assert client.is_server_live() is client.is_server_ready() is True
    assert client.is_model_ready("double") is client.is_model_ready("double", "1") is True
    assert client.is_model_ready("double", "9") is client.is_model_ready("none") is False


def check_what_load_generators_ask_first(client: Any, _: Path) -> None:
    for version in ("", "1"):
        assert client.get_model_metadata("double", version) == {
            "name": "double",
            "versions": ["1", "2"],
            "platform": "pytorch_torchscript",
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}],
            "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 2]}],
        }
        config = client.get_model_config("double", version)
        assert config["max_batch_size"] == 64, config
        (first,) = config["input"]
        assert (first["name"], first["data_type"], first["dims"]) == ("x", "TYPE_FP32", [2])
        assert [each["name"] for each in config["output"]] == ["y"]
    server = client.get_server_metadata()
    assert set(server) == {"name", "version", "extensions"}, server
    assert server["extensions"] == [
        *("binary_tensor_data", "classification", "model_configuration", "model_repository"),
        "statistics",
    ]


def check_statistics_count_what_was_computed(client: Any, _: Path) -> None:
    def now() -> Any:
        (found,) = client.get_inference_statistics("double", "1")["model_stats"]
        return found

    before = now()
    rows = np.random.default_rng().random((3, 2), np.float32)
    client.infer("double", [tensor(rows)], model_version="1")
    after = now()
    assert (after["name"], after["version"]) == ("double", "1")
    assert after["inference_count"] - before["inference_count"] == 3
    assert after["execution_count"] > before["execution_count"]
    parts = ("success", "fail", "queue", "compute_infer", "cache_hit", "cache_miss")
    for part in (*parts, "compute_input", "compute_output"):
        assert set(after["inference_stats"][part]) == {"count", "ns"}, part
    success = (each["inference_stats"]["success"]["count"] for each in (after, before))
    assert next(success) - next(success) == 1  # requests, not items
    every = client.get_inference_statistics()["model_stats"]
    assert {(each["name"], each["version"]) for each in every} >= {("double", "1"), ("small", "1")}


def check_binary_is_the_default(client: Any, _: Path) -> None:
    made = client.infer("double", [tensor(X)])
    answer = made.get_response()
    assert (answer["model_name"], answer["model_version"]) == ("double", "2")
    assert "id" not in answer, answer
    assert answer["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    ]
    np.testing.assert_array_equal(made.as_numpy("y"), X * 2)


def check_each_output_says_how_it_comes(client: Any, _: Path) -> None:
    rows = np.array([[1.5, -2.25]], np.float32)
    wanted = [output("negative"), output("rest", binary_data=False), output("whole")]
    made = client.infer("parts", [tensor(rows)], outputs=wanted)
    shown = made.get_response()["outputs"]
    assert [(each["name"], each["datatype"], "data" in each) for each in shown] == [
        ("negative", "BOOL", False),
        ("rest", "FP32", True),
        ("whole", "INT64", False),
    ]
    for name, values in (("negative", [0, 1]), ("rest", [0.5, -0.25]), ("whole", [1, -2])):
        np.testing.assert_array_equal(made.as_numpy(name), [values])


def check_every_datatype_in_binary_and_json(client: Any, _: Path) -> None:
    for name, array in TYPED.items():
        for binary in (True, False):
            given, wanted = tensor(array, binary=binary), output("x", binary_data=binary)
            found = client.infer(name, [given], outputs=[wanted]).as_numpy("x")
            assert found.dtype == array.dtype, name
            assert found.tobytes() == array.tobytes(), (name, binary, found)


def check_bf16_is_taken_where_a_model_takes_fp32(client: Any, _: Path) -> None:
    rows = np.array([[1.5, -2.25]], ml_dtypes.bfloat16)
    found = client.infer("double", [tensor(rows)]).as_numpy("y")
    np.testing.assert_array_equal(found, np.array([[3, -4.5]], np.float32))


def check_pictures_are_files(client: Any, folder: Path) -> None:
    files = [(folder / name).read_bytes() for name in ("dark.png", "light.jpg")]
    wanted = np.array([[1, 0], [0, 1]], np.float32)
    raw = np.array(files, np.object_)
    made = client.infer("pictures", [tensor(raw, "picture")]).as_numpy("scores")
    np.testing.assert_allclose(made, wanted, atol=0.02)
    text = np.array([base64.b64encode(each) for each in files], np.object_)
    made = client.infer("pictures", [tensor(text, "picture", binary=False)])
    np.testing.assert_allclose(made.as_numpy("scores"), wanted, atol=0.02)


def check_texts_and_other_bytes_of_a_handler(client: Any, _: Path) -> None:
    texts = np.array([["é", "b"], ["", "d"]], np.object_)
    for binary in (True, False):
        given, wanted = tensor(texts, "text", binary=binary), output("joined", binary_data=binary)
        found = client.infer("joined", [given], outputs=[wanted]).as_numpy("joined")
        assert [*found] == (["éb".encode(), b"d"] if binary else ["éb", "d"]), found
    octets = np.array([[b"\xff\0", b"\0"]], np.object_)
    found = client.infer("joined", [tensor(octets, "text")]).as_numpy("joined")
    assert [*found] == [b"\xff\0\0"], found
    wanted = output("joined", binary_data=False)
    status, said = refused(client.infer, "joined", [tensor(octets, "text")], outputs=[wanted])
    assert (status, "not UTF-8" in said) == ("406", True), (status, said)


def check_ids_and_parameters(client: Any, _: Path) -> None:
    made = client.infer(
        "double",
        [tensor(X)],
        request_id="7e2a",
        priority=3,
        timeout=20_000_000,
        sequence_id=4,
        sequence_start=True,
        sequence_end=True,
        parameters={"own": "x", "number": 1.5, "flag": True},
        headers={"x-own": "1"},
    )
    assert made.get_response()["id"] == "7e2a"
    status, said = refused(client.infer, "double", [tensor(X)], query_params={"any": ["a", 1]})
    assert (status, "unknown query parameter 'any'" in said) == ("400", True), (status, said)


def check_the_timeout_is_a_deadline_in_microseconds(client: Any, _: Path) -> None:
    status, said = refused(client.infer, "double", [tensor(X * 3)], timeout=1)
    assert status in ("503", "504"), (status, said)


def check_errors_are_exceptions(client: Any, _: Path) -> None:
    for call in (
        client.get_model_metadata,
        client.get_model_config,
        client.get_inference_statistics,
    ):
        assert refused(call, "none")[0] == "404"
    assert refused(client.infer, "none", [tensor(X)])[0] == "404"
    assert refused(client.infer, "double", [tensor(X)], "9")[0] == "404"
    assert refused(client.get_trace_settings)[0] == "404"
    for binary in (True, False):
        status, said = refused(client.infer, "double", [tensor(X[:, :1], binary=binary)])
        assert status == "400", (status, said)
    status, said = refused(client.infer, "double", [tensor(X)], outputs=[output("q")])
    assert (status, "q" in said) == ("400", True), said


def main() -> None:
    kind, target, folder = sys.argv[1:]
    client: Any = http.InferenceServerClient(target)
    if kind == "aio":
        client = Synchronous(lambda: aio.InferenceServerClient(target))
    run_checks(globals(), client, Path(folder))


if __name__ == "__main__":
    main()
