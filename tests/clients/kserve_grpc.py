"""KServe's inference client over gRPC. Argument: host and port."""

from __future__ import annotations

import logging
import sys
from typing import Any

import numpy as np
from grpc import RpcError, StatusCode
from kserve import InferenceGRPCClient, InferInput, InferRequest

from tests.clients.checking import run_checks

X = np.array([[1, 2]], np.float32)


def request(data: Any, datatype: str = "FP32", model: str = "double", **named: Any) -> Any:
    """A request; a list becomes typed contents, an array raw_input_contents."""
    given = InferInput("x", list(np.shape(data)), datatype, data)
    if isinstance(data, list):
        given.data = np.ravel(data).tolist()
    return InferRequest(model_name=model, infer_inputs=[given], **named)


async def check_health(target: str) -> None:
    client = InferenceGRPCClient(target)
    assert await client.is_server_live() is await client.is_server_ready() is True
    assert await client.is_model_ready("double") is True
    assert await client.is_model_ready("none") is False


async def check_raw_and_typed_contents(target: str) -> None:
    client = InferenceGRPCClient(target)
    for data in (X, X.tolist()):
        answer = await client.infer(request(data, request_id="7"))
        assert (answer.id, answer.model_name, answer.model_version) == ("7", "double", "2")
        np.testing.assert_array_equal(answer.outputs[0].as_numpy(), X * 2)
    for model, datatype, data in (
        ("int8", "INT8", [[-1, 2]]),
        ("int64", "INT64", [[-(2**62), 2]]),
        ("uint8", "UINT8", [[1, 255]]),
        ("bool", "BOOL", [[True, False]]),
        ("float64", "FP64", [[0.1, 2]]),
    ):
        answer = await client.infer(request(data, datatype, model))
        assert answer.outputs[0].as_numpy().tolist() == data, model


async def check_errors(target: str) -> None:
    client = InferenceGRPCClient(target)
    for asked, code in (
        (request(X, model="none"), StatusCode.NOT_FOUND),
        (request(X, model_version="9"), StatusCode.NOT_FOUND),
        (request([[1.0]]), StatusCode.INVALID_ARGUMENT),
        (request([[1, 2]], "INT32"), StatusCode.INVALID_ARGUMENT),
    ):
        found: StatusCode | None = None
        try:
            await client.infer(asked)
        except RpcError as error:
            found = error.code()
        assert found is code, (found, code)


if __name__ == "__main__":
    logging.disable()  # the client logs each error that it raises
    run_checks(globals(), sys.argv[1])
