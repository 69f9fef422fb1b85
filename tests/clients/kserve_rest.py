"""KServe's inference client over REST. Argument: the server's address."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from httpx import HTTPStatusError
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

from tests.clients.checking import run_checks

X = np.array([[1, 2]], np.float32)


def client() -> Any:
    """A client of the protocol's second version."""
    return InferenceRESTClient(RESTConfig(protocol="v2"))


def request(data: Any = None, array: Any = None, *, binary: bool = False, **named: Any) -> Any:
    """A request for `double`; its data is a list, or an array in binary."""
    given = InferInput("x", list(np.shape(data if array is None else array)), "FP32", data)
    if array is not None:
        given.set_data_from_numpy(array, binary_data=binary)
    return InferRequest(model_name="double", infer_inputs=[given], **named)


async def refused(url: str, data: Any, model: str = "double") -> tuple[int, str]:
    """The status of an error, and the message that the client has found in it."""
    try:
        await client().infer(url, data, model_name=model)
    except HTTPStatusError as error:
        return error.response.status_code, str(error).partition(", '")[0]
    raise AssertionError("no error")


async def check_health(url: str) -> None:
    assert await client().is_server_live(url) is await client().is_server_ready(url) is True
    assert await client().is_model_ready(url, "double") is True
    assert await client().is_model_ready(url, "none") is False


async def check_binary(url: str) -> None:
    for parameters in ({"binary_data_output": True}, None):
        asked = request(array=X, binary=True, request_id="7", parameters=parameters)
        headers: dict[str, str] = {}
        answer = await client().infer(url, asked, model_name="double", response_headers=headers)
        assert ("inference-header-content-length" in headers) is (parameters is not None)
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), X * 2)
        assert answer.id == "7"


async def check_errors_are_found_in_the_body(url: str) -> None:
    for asked, model, status in (
        (request([[1.0, 2.0]]), "none", 404),
        (request([[1.0, 2.0, 3.0]]), "double", 400),
        (request(array=X.ravel(), binary=True), "double", 400),
        (request(array=X[:0], binary=True), "double", 400),
        ({"inputs": []}, "double", 400),
    ):
        found, said = await refused(url, asked, model)
        assert found == status, (found, said)
        assert said, "it reads `error` of exactly `application/json`"


if __name__ == "__main__":
    run_checks(globals(), sys.argv[1])
