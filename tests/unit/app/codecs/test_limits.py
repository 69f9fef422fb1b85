"""A manifest's ranges, sizes and shared sizes: enforced on every path, with numbers."""

from __future__ import annotations

import io

import numpy as np
import orjson
import pytest
from pydantic import ValidationError

from app.api.payloads import read_items
from app.codecs.base import JSON, NPY, OCTET_STREAM
from app.codecs.tensor import TensorCodec
from app.errors import InvalidInput
from app.types import Array
from models.tensors import Dimension, TensorSpec
from tests.unit.models.manifests import make_manifest

SEQ, N = Dimension(name="seq", least=1, most=4), Dimension(name="n", most=4)
IDS = TensorSpec(name="ids", dtype="int64", shape=(-1, 3), minimum=0, maximum=49)
FREE = IDS.model_copy(update={"shape": (-1, -1), "dimensions": (SEQ,)})
MASK = TensorSpec(name="mask", dtype="bool", shape=(-1, -1), dimensions=(SEQ,))


def npy(value: object) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(value))
    return buffer.getvalue()


def raw(value: object) -> bytes:
    return np.array(value, "<i8").tobytes()


def read(specs: list[TensorSpec], body: bytes, media_type: str, *, many: bool) -> list[Array]:
    codec = TensorCodec(make_manifest(specs))
    items = read_items(codec, media_type, body, many=many, max_items=8)
    return [next(iter(item.arrays.values())) for item in items]


def rejected(specs: list[TensorSpec], body: bytes, media_type: str, *, many: bool) -> InvalidInput:
    with pytest.raises(InvalidInput) as caught:
        read(specs, body, media_type, many=many)
    return caught.value


WAYS = {
    "nested": lambda item: (JSON, orjson.dumps({"input": item})),
    "by name": lambda item: (JSON, orjson.dumps({"input": {"ids": item}})),
    "floats": lambda item: (JSON, orjson.dumps({"input": [float(each) for each in item]})),
    "raw": lambda item: (OCTET_STREAM, raw(item)),
    "npy": lambda item: (NPY, npy(item)),
}


@pytest.mark.parametrize("way", WAYS)
class TestRanges:
    @pytest.mark.parametrize("item", [[0, 1, 49], [49, 49, 0]])
    def test_range_includes_its_bounds(self, way: str, item: list[int]) -> None:
        media_type, body = WAYS[way](item)
        assert read([IDS], body, media_type, many=False)[0].tolist() == item

    @pytest.mark.parametrize(
        ("item", "got", "limit", "at"),
        [([0, 300, 1], 300, 49, 1), ([-1, 0, 0], -1, 0, 0), ([50, -(2**40), 0], 50, 49, 0)],
    )
    def test_error_names_number_range_and_position(
        self, way: str, item: list[int], got: int, limit: int, at: int
    ) -> None:
        media_type, body = WAYS[way](item)
        error = rejected([IDS], body, media_type, many=False)
        assert str(error) == f"'ids': expected whole numbers in 0..49, got {got} at [{at}]"
        assert error.details == ({"input": "ids", "got": got, "limit": limit},)


BATCHES = {
    "nested": lambda items: (JSON, orjson.dumps({"inputs": items})),
    "raw": lambda items: (OCTET_STREAM, raw(items)),
    "npy": lambda items: (NPY, npy(items)),
}


@pytest.mark.parametrize("way", BATCHES)
def test_first_wrong_item_of_a_batch_is_named(way: str) -> None:
    media_type, body = BATCHES[way]([[1, 2, 3], [1, 50, 51], [-9, 0, 0]])
    error = rejected([IDS], body, media_type, many=True)
    problem = "'ids': expected whole numbers in 0..49, got 50 at [1]"
    assert str(error) == f"inputs[1]: {problem}"
    wanted = {"index": 1, "problem": problem, "input": "ids", "got": 50, "limit": 49}
    assert error.details == (wanted,)


@pytest.mark.parametrize(
    ("item", "told", "numbers"),
    [
        ([0] * 5, "'ids': expected int64 of shape [seq 1..4], got shape [5]", (5, 4)),
        ([], "'ids': expected int64 of shape [seq 1..4], got shape [0]", (0, 1)),
        ([[0]], "'ids': expected int64 of shape [seq 1..4], got shape [1, 1]", None),
    ],
)
@pytest.mark.parametrize("way", ["nested", "npy"])
def test_sizes_out_of_bounds_are_rejected(
    item: list[object], told: str, numbers: tuple[int, int] | None, way: str
) -> None:
    media_type, body = WAYS[way](item)
    error = rejected([FREE], body, media_type, many=False)
    assert str(error) == told
    got = [(each["got"], each["limit"]) for each in error.details]
    assert got == ([] if numbers is None else [numbers])


@pytest.mark.parametrize("many", [False, True])
def test_inputs_must_agree_on_a_shared_size(many: bool) -> None:
    right, wrong = {"ids": [1, 2], "mask": [1, 0]}, {"ids": [1, 2], "mask": [1, 0, 1]}
    body = orjson.dumps({"inputs": [right, wrong]} if many else {"input": wrong})
    error = rejected([FREE, MASK], body, JSON, many=many)
    problem = (
        "'mask': axis 0 has size 3, but axis 0 of 'ids' has size 2: both are 'seq' and must be "
        "equal"
    )
    assert str(error) == ("inputs[1]: " if many else "") + problem
    index = {"index": 1, "problem": problem} if many else {}
    assert error.details == ({**index, "input": "mask", "got": 3, "limit": 2},)


NODES = TensorSpec(name="nodes", dtype="float32", shape=(-1, -1), dimensions=(N,))
EDGES = TensorSpec(name="edges", dtype="int64", shape=(-1, 2), minimum=0, below="n")
PROBLEM = "'edges': expected whole numbers in 0..<n, where n is 3, got 3 at [1]"


@pytest.mark.parametrize("many", [False, True])
def test_index_must_be_less_than_the_size_of_its_item(many: bool) -> None:
    right, wrong = ({"nodes": [0.5] * size, "edges": [2, 3]} for size in (4, 3))
    body = orjson.dumps({"inputs": [right, wrong]} if many else {"input": wrong})
    error = rejected([NODES, EDGES], body, JSON, many=many)
    assert str(error) == ("inputs[1]: " if many else "") + PROBLEM
    index = {"index": 1, "problem": PROBLEM} if many else {}
    assert error.details == ({**index, "input": "edges", "got": 3, "limit": 2},)
    assert len(read([NODES, EDGES], orjson.dumps({"inputs": [right]}), JSON, many=True)) == 1


def test_index_in_arrays_of_several_items_must_be_less_than_their_size() -> None:
    codec = TensorCodec(make_manifest([NODES, EDGES]))
    arrays = {"nodes": np.ones((2, 3), np.float32), "edges": np.array([[0, 2], [2, 3]])}
    with pytest.raises(InvalidInput) as caught:
        codec.decode_arrays(arrays)
    assert str(caught.value) == f"inputs[1]: {PROBLEM}"
    arrays["edges"][1, 1] = 2
    assert len(codec.decode_arrays(arrays)) == 2


TIME = Dimension(name="t", least=1, most=4, mask="mask")
SOUND = TensorSpec(name="x", dtype="float32", shape=(-1, -1), dimensions=(TIME,))
DATA = TensorSpec(name="mask", dtype="bool", shape=(-1, -1), dimensions=(TIME,))
NOTHING = "'mask': expected 1 in at least one place, got only 0"


@pytest.mark.parametrize("many", [False, True])
def test_item_without_data_is_rejected(many: bool) -> None:
    right, wrong = ({"x": [1, 2], "mask": mask} for mask in ([False, True], [False, False]))
    body = orjson.dumps({"inputs": [right, wrong]} if many else {"input": wrong})
    told = str(rejected([SOUND, DATA], body, JSON, many=many))
    assert told == ("inputs[1]: " if many else "") + NOTHING
    codec = TensorCodec(make_manifest([SOUND, DATA]))
    masks = np.array([[True, False], [False, False]])
    with pytest.raises(InvalidInput, match=r"^inputs\[1\]: 'mask': expected 1 in at least one"):
        codec.decode_arrays({"x": np.ones((2, 2), np.float32), "mask": masks})
    assert len(codec.decode_arrays({"x": np.ones((1, 2), np.float32), "mask": masks[:1]})) == 1


def test_range_ends_at_a_number_or_at_a_size_that_exists() -> None:
    with pytest.raises(ValidationError, match="ends at 9 or at the size 'n', not at both"):
        TensorSpec(name="x", dtype="int64", shape=(-1,), maximum=9, below="n")
    with pytest.raises(ValidationError, match="size 'n', but no free size has this"):
        make_manifest([EDGES])
