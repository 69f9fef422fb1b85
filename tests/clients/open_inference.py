"""open-inference-openapi, which validates every answer. Argument: the server's address."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from open_inference.openapi import InferenceRequest, RequestInput, RequestOutput
from open_inference.openapi.client import OpenInferenceClient
from open_inference.openapi.core import ApiError
from open_inference.openapi.errors import BadRequestError, NotFoundError

from tests.clients.checking import run_checks


def request(data: Any, **named: Any) -> Any:
    """A request for `double`."""
    given = RequestInput(name="x", shape=[len(data), 2], datatype="FP32", data=data)
    return InferenceRequest(inputs=[given], **named)


def refused(call: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """The error of a call; its body is the parsed answer."""
    try:
        call(*given, **named)
    except ApiError as error:
        return error
    raise AssertionError("no error")


def check_health(client: Any) -> None:
    client.check_server_liveness()
    client.check_server_readiness()
    client.check_model_readiness("double")
    client.check_model_version_readiness("double", "1")
    assert isinstance(refused(client.check_model_readiness, "none"), NotFoundError)
    assert isinstance(refused(client.check_model_version_readiness, "double", "9"), NotFoundError)


def check_metadata(client: Any) -> None:
    assert client.read_server_metadata().name == "torchlane"
    for found in (
        client.read_model_metadata("double"),
        client.read_model_version_metadata("double", "1"),
    ):
        assert (found.name, found.versions) == ("double", ["1", "2"])
        assert [(each.datatype, each.shape) for each in found.inputs] == [("FP32", [-1, 2])]


def check_infer(client: Any) -> None:
    asked = request([[1, 2], [3, 4]], id="7", outputs=[RequestOutput(name="y")])
    for found, version in (
        (client.model_infer("double", request=asked), "2"),
        (client.model_version_infer("double", "1", request=asked), "1"),
    ):
        assert (found.id, found.model_name, found.model_version) == ("7", "double", version)
        (output,) = found.outputs
        assert (output.name, output.datatype, output.shape) == ("y", "FP32", [2, 2])
        assert output.data.__root__ == [2, 4, 6, 8]


def check_errors(client: Any) -> None:
    error = refused(client.model_infer, "double", request=request([[1, 2, 3]]))
    assert isinstance(error, BadRequestError), error
    assert set(error.body) == {"error"}, error
    error = refused(client.model_infer, "none", request=request([[1, 2]]))
    assert (error.status_code, set(error.body)) == (404, {"error"})


if __name__ == "__main__":
    run_checks(globals(), OpenInferenceClient(base_url=sys.argv[1]))
