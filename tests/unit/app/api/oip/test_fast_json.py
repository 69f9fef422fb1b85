"""Which infer requests have their floats read by machine code, and what becomes of them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.api.oip import fast_json
from tests.native import read_floats

X = {"name": "x", "datatype": "FP32", "shape": [2, 2]}
FLAT = {**X, "data": [1, 2, 3.5, 4]}


def loaded(body: object) -> dict[str, Any] | None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return fast_json.load(text, read_floats())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"id": "a", "parameters": {"binary_data_output": True, "timeout": 5}},
        {"outputs": [{"name": "y", "parameters": {"classification": 2}}]},
        {"parameters": None, "outputs": None, "model_name": "m", "unknown": {"a": {"b": 1}}},
    ],
)
@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
@pytest.mark.parametrize("data", [[1, 2, 3.5, 4], [[1, 2], [3.5, 4]]])
@pytest.mark.parametrize("last", [True, False])
def test_bodies_written_by_clients(
    data: object, datatype: str, more: dict[str, object], last: bool
) -> None:
    about: dict[str, object] = {**X, "datatype": datatype, "parameters": {}}
    tensor = {**about, "data": data} if last else {"data": data, **about}
    document = loaded({"inputs": [tensor], **more} if last else {**more, "inputs": [tensor]})
    assert document is not None
    numbers = document["inputs"][0].pop("data")
    assert numbers.dtype == {"FP32": np.float32, "FP64": np.float64}[datatype]
    assert numbers.tolist() == [1, 2, 3.5, 4]
    assert document == {"inputs": [about], **more}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xef\xbb\xbf" + json.dumps({"inputs": [FLAT]}).encode(),
        {"inputs": {}},
        {"inputs": [1]},
        {"inputs": [FLAT, FLAT]},
        {"inputs": [{**FLAT, "datatype": "INT64"}]},
        {"inputs": [{**FLAT, "datatype": "FP16"}]},
        {"inputs": [{**FLAT, "datatype": []}]},
        {"inputs": [{**FLAT, "data": "AAAA"}]},
        {"inputs": [{**FLAT, "data": [1, 2, 3]}]},
        {"inputs": [{**FLAT, "data": [[1, 2], [3, 4], []]}]},
        {"inputs": [{**FLAT, "data": [[[1, 2]], [3, 4]]}]},
        {"inputs": [{**FLAT, "data": [1, 2, 3, None]}]},
        {"inputs": [{**FLAT, "data": [1, 2, 3, 2**60 + 1]}]},  # not exact as float64
        {"inputs": [{**FLAT, "shape": [0]}]},
        {"inputs": [{**FLAT, "shape": "22"}]},
        {"inputs": [{**FLAT, "shape": [-1, 4]}]},
        {"inputs": [{**FLAT, "shape": [1] * 100}]},
        {"id": '{"data": [1, 2, 3, 4]', "inputs": [{**X, "data": "A"}]},
        {"id": "x" * 5000, "inputs": [FLAT]},
        {"inputs": [FLAT], "id": "x" * 5000},
        json.dumps({"inputs": [FLAT]}).replace("[1,", '"[1,').encode(),
        json.dumps({"inputs": [FLAT]}).encode() + b"1",
        json.dumps({"inputs": [FLAT]}).replace("4]", "4],,").encode(),
    ],
)
def test_other_bodies_are_left_to_orjson(body: object) -> None:
    assert loaded(body) is None


def test_the_last_of_equal_keys_counts() -> None:
    text = json.dumps({"inputs": [FLAT]}).replace('"data"', '"data": [9, 9, 9, 9], "data"')
    assert loaded(text.encode()) is None
