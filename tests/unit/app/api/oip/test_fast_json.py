"""Which bodies the fast parser takes, and that no other costs it more than a look."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from app.api.oip.fast_json import FastJson
from app.api.oip.infer import parse_body
from app.api.oip.tensors import items_of
from app.codecs.base import Budget, Codec
from app.codecs.choose import codec_for
from app.types import Array
from models.tensors import Dtype
from tests.unit.models.manifests import make_manifest, spec

X = {"name": "x", "datatype": "FP32", "shape": [2, 2]}
FLAT = {**X, "data": [1, 2, 3.5, 4]}
LONG = 10_000


def codec(dtype: Dtype = "float32") -> Codec:
    return codec_for(make_manifest([spec("x", dtype, (-1, 2))]))


def loaded(body: object, dtype: Dtype = "float32") -> dict[str, Any] | None:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return FastJson().load(text, codec(dtype))


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"id": "a", "parameters": {"binary_data_output": True, "timeout": 5}},
        {"outputs": [{"name": "y", "parameters": {"classification": 2}}]},
        {"parameters": None, "outputs": None, "model_name": "m", "unknown": {"a": {"b": 1}}},
    ],
)
@pytest.mark.parametrize("data", [[1, 2, 3.5, 4], [[1, 2], [3.5, 4]]])
def test_bodies_written_by_clients(data: object, more: dict[str, object]) -> None:
    document = loaded({"inputs": [{**X, "parameters": {}, "data": data}], **more})
    assert document is not None
    numbers: Array = document["inputs"][0].pop("data")
    assert numbers.dtype == np.float32
    assert numbers.tolist() == [1, 2, 3.5, 4]
    assert document["inputs"] == [{**X, "parameters": {}}]
    known = {key: value for key, value in more.items() if key in ("id", "parameters", "outputs")}
    assert {key: document[key] for key in document if key != "inputs"} == known


def test_whole_numbers() -> None:
    given = {**X, "datatype": "INT64", "data": [2**63 - 1, -(2**63), 0, 1]}
    document = loaded({"inputs": [given]}, "int64")
    assert document is not None
    assert document["inputs"][0]["data"].tolist() == given["data"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\xef\xbb\xbf{}",
        {"inputs": {}},
        {"inputs": [1]},
        {"inputs": [{**FLAT, "name": "z"}]},
        {"inputs": [{**FLAT, "datatype": "FP64"}]},
        {"inputs": [{**FLAT, "datatype": "BOOL"}]},
        {"inputs": [{**FLAT, "data": "AAAA"}]},
        {"inputs": [{**FLAT, "data": [1, 2, 3]}]},
        {"inputs": [{**FLAT, "data": [[1, 2], [3, 4], []]}]},
        {"inputs": [{**FLAT, "data": [[[1, 2]], [3, 4]]}]},
        {"inputs": [{**FLAT, "data": [[1, 2, 3, 4], [], [], []]}]},
        {"inputs": [{**FLAT, "data": [1, 2, 3, None]}]},
        {"inputs": [{**FLAT, "data": [1, 2, 3, 2**60 + 1]}]},  # not exact as float64
        {"inputs": [{**FLAT, "shape": []}]},
        {"inputs": [{**FLAT, "shape": [4], "data": [[1, 2], [3, 4]]}]},
        json.dumps({"inputs": [FLAT]}).replace('"name"', '"name": "y", "name"').encode(),
        json.dumps({"inputs": [FLAT]}).replace("{", '{"inputs": [], ', 1).encode(),
    ],
)
def test_other_bodies_are_left_to_the_slow_parser(body: object) -> None:
    assert loaded(body) is None


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [{**X, "shape": [2, *[1] * LONG], "data": [[1, 2]]}]},
        {"inputs": [FLAT] * LONG},
        {"inputs": [FLAT], **{f"k{number}": 1 for number in range(LONG)}},
        {"inputs": [{**FLAT, **{f"k{number}": 1 for number in range(LONG)}}]},
        {"inputs": [FLAT], "parameters": {f"k{number}": 1 for number in range(LONG)}},
        {"inputs": [FLAT], "outputs": [{"name": "y"}] * LONG},
        {"inputs": [FLAT], "parameters": {"a": {"b": {"c": {"d": 1}}}}},
    ],
)
def test_long_metadata_is_left_to_the_slow_parser(body: object) -> None:
    assert loaded(body) is None


@pytest.mark.parametrize("number", [2**53 + 1, 1152921573326323713, -(2**60) - 1])
def test_both_parsers_round_alike(number: int) -> None:
    body = json.dumps({"inputs": [{**X, "data": [number, 1, 2, 3]}]}).encode()
    found = []
    for fast in (FastJson(), None):
        budget = Budget()
        request = parse_body(codec(), body, None, 4, budget, fast)
        found.append(items_of(codec(), request.inputs, 4, budget)[0].arrays["x"].tolist())
    assert found[0] == found[1]
