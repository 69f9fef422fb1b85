"""KServe's client over REST with its default protocol, V1. Argument: the server's address."""

from __future__ import annotations

import sys
from collections.abc import Awaitable
from typing import Any

import numpy as np
from httpx import HTTPStatusError
from kserve import InferenceRESTClient, RESTConfig

from tests.clients.checking import run_checks

ROWS = [[1.0, 2.0], [3.0, 4.0]]
DOUBLED = [[2.0, 4.0], [6.0, 8.0]]


def client() -> Any:
    """A client as it is made without a protocol: of version 1."""
    return InferenceRESTClient(RESTConfig())


async def check_rows_and_columns(url: str) -> None:
    for body, answer in (
        ({"instances": ROWS}, {"predictions": DOUBLED}),
        ({"instances": np.array(ROWS).tolist()}, {"predictions": DOUBLED}),
        ({"inputs": {"x": ROWS}}, {"outputs": DOUBLED}),
    ):
        assert await client().infer(url, body, model_name="double") == answer


async def refused(call: Awaitable[object]) -> tuple[int, str]:
    """The status of an error, and what the client tells of it."""
    try:
        await call
    except HTTPStatusError as error:
        return error.response.status_code, str(error)
    raise AssertionError("no error")


async def check_errors_are_read_from_the_body(url: str) -> None:
    for body, model, status, message in (
        ({"instances": ROWS}, "none", 404, "there is no model 'none'"),
        ({"instances": [[1.0]]}, "double", 400, "instances[0]: 'x': expected"),
        ({}, "double", 400, "exactly one of 'instances' or 'inputs'"),
    ):
        found, told = await refused(client().infer(url, body, model_name=model))
        assert found == status
        assert message in told, told


if __name__ == "__main__":
    run_checks(globals(), sys.argv[1])
