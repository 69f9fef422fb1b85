"""Requests for the benchmark: valid HTTP, none like another, and the inputs they stand for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import orjson
import pytest

from loadtests.bench.bodies import (
    KNOWN_FROM,
    OWN_DIGITS,
    OWN_NUMBERS,
    TEXTS,
    Bodies,
    BodiesError,
    bodies_of,
    own_binary,
    own_json,
)
from loadtests.bench.dialects import DIALECTS, dialect_of
from loadtests.bench.workloads import (
    BATCH_TEXTS,
    INFINITY,
    MLSERVER,
    NATIVE,
    OURS,
    PLAIN_ENCODER,
    PYTRITON,
    WORKLOADS,
    Workload,
)
from models.manifest import MANIFEST_FILE, Manifest
from models.tensors import Array, TensorSpec
from tests.artifacts import write_artifact

BY_NAME = {workload.name: workload for workload in WORKLOADS}
SINGLE, BINARY = BY_NAME["json-32"], BY_NAME["binary-32"]
BATCH, BATCH_BINARY, ZIPF = BY_NAME["batch-json"], BY_NAME["batch-binary"], BY_NAME["zipf"]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    folder = write_artifact(tmp_path, "double")  # float32 [2], golden 1 and 2
    return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())


def made(workload: Workload, manifest: Manifest, server: str = OURS, seed: int = 0) -> Bodies:
    return bodies_of(workload, manifest, DIALECTS[server], seed)


def body_of(request: bytes) -> bytes:
    return request.partition(b"\r\n\r\n")[2]


def inputs_in(workload: Workload, body: bytes) -> Array:
    """What a server reads of a body: float32 [items, 2]."""
    if workload.body == "binary":
        return np.frombuffer(body, "<f4").reshape(-1, 2)
    loaded = orjson.loads(body)
    return np.array(loaded.get("inputs") or [loaded["input"]], np.float32)


@pytest.mark.parametrize("workload", [SINGLE, BINARY, BATCH, BATCH_BINARY, ZIPF])
def test_request_is_complete_and_carries_the_reported_inputs(
    workload: Workload, manifest: Manifest
) -> None:
    bodies = made(workload, manifest)
    for number in (0, 1, 257, bodies.known_from):
        head, _, body = bodies.request(number).partition(b"\r\n\r\n")
        first, *headers = head.decode().split("\r\n")
        path = "/batch-predict" if workload.items > 1 else "/predict"
        assert first == f"POST {path} HTTP/1.1"
        assert f"Content-Length: {len(body)}" in headers
        found = inputs_in(workload, body)
        assert found.shape == (workload.items, 2)
        np.testing.assert_array_equal(found, bodies.inputs(number))


@pytest.mark.parametrize("workload", [SINGLE, BINARY, BATCH, BATCH_BINARY])
def test_inputs_of_a_run_differ_in_float32(workload: Workload, manifest: Manifest) -> None:
    runs = [
        [
            item.tobytes()
            for number in (*range(600), *range(bodies.known_from, bodies.known_from + 20))
            for item in inputs_in(workload, body_of(bodies.request(number)))
        ]
        for bodies in (made(workload, manifest, seed=1), made(workload, manifest, seed=2))
    ]
    for items in runs:
        assert len(set(items)) == len(items) == 620 * workload.items
    # this model's items have but one number that is not their own: a few are drawn in both runs
    assert len(set(runs[0]) & set(runs[1])) < 0.01 * len(runs[0])


def test_repeated_bodies_follow_zipfs_law(manifest: Manifest) -> None:
    bodies = made(ZIPF, manifest)
    requests = [bodies.request(number) for number in range(5000)]
    counts = sorted((requests.count(each) for each in set(requests)), reverse=True)
    assert 90 <= len(counts) <= ZIPF.repeated
    # the most popular of a hundred, by Zipf's law: 1 of 5.19
    assert counts[0] == pytest.approx(5000 / 5.19, rel=0.15)
    assert counts[0] == pytest.approx(2 * counts[1], rel=0.25)
    assert bodies.own_per_request == 0


def test_another_protocol_carries_the_same_inputs(manifest: Manifest) -> None:
    for workload in (SINGLE, BATCH):
        bodies = made(workload, manifest, MLSERVER)
        request = bodies.request(3)
        assert request.startswith(b"POST /v2/models/model/infer HTTP/1.1\r\n")
        tensor = orjson.loads(body_of(request))["inputs"][0]
        assert tensor["shape"] == [workload.items, 2]
        found = np.array(tensor["data"], np.float32).reshape(tensor["shape"])
        np.testing.assert_array_equal(found, bodies.inputs(3))


@pytest.mark.parametrize("name", ["v2-binary-32", "v2-batch-binary"])
@pytest.mark.parametrize(("server", "path"), [(OURS, "double"), (PYTRITON, "model")])
def test_binary_tensors_are_framed_as_the_protocol_says(
    manifest: Manifest, name: str, server: str, path: str
) -> None:
    workload = BY_NAME[name]
    bodies = bodies_of(workload, manifest, dialect_of(server, workload, manifest), 0)
    for number in (0, 3, bodies.known_from):
        head, _, body = bodies.request(number).partition(b"\r\n\r\n")
        first, *headers = head.decode().split("\r\n")
        assert first == f"POST /v2/models/{path}/infer HTTP/1.1"
        assert f"Content-Length: {len(body)}" in headers
        fields = dict(line.split(": ") for line in headers)
        size = int(fields["Inference-Header-Content-Length"])
        (tensor,) = orjson.loads(body[:size])["inputs"]
        assert tensor["shape"] == [workload.items, 2]
        assert tensor["parameters"] == {"binary_data_size": len(body) - size}
        found = np.frombuffer(body[size:], "<f4").reshape(tensor["shape"])
        np.testing.assert_array_equal(found, bodies.inputs(number))


def test_native_routes_get_the_usual_requests(manifest: Manifest) -> None:
    for name, same in (("v2-binary-32", "binary-32"), ("v2-json-32", "json-32")):
        dialect = dialect_of(NATIVE, BY_NAME[name], manifest)
        native = bodies_of(BY_NAME[name], manifest, dialect, 0)
        assert native.request(5) == made(BY_NAME[same], manifest).request(5)


@pytest.mark.parametrize("name", ["text-32", "text-batch", "text-zipf-32"])
@pytest.mark.parametrize("server", [OURS, INFINITY, NATIVE, PLAIN_ENCODER])
def test_sentences_are_sent_as_complete_requests(
    manifest: Manifest, name: str, server: str
) -> None:
    workload = BY_NAME[name]
    bodies = bodies_of(workload, manifest, dialect_of(server, workload, manifest), 3)
    for number in (0, 99, bodies.known_from, bodies.known_from + 20):
        head, _, body = bodies.request(number).partition(b"\r\n\r\n")
        assert f"Content-Length: {len(body)}" in head.decode().split("\r\n")
        loaded = orjson.loads(body)
        loaded.pop("model", None)
        [texts] = loaded.values()
        assert bodies.inputs(number).tolist() == (texts if workload.items > 1 else [texts])


def test_sentences_of_two_runs_all_differ(manifest: Manifest) -> None:
    workload = BY_NAME["text-batch"]
    dialect = dialect_of(OURS, workload, manifest)
    runs = [bodies_of(workload, manifest, dialect, seed) for seed in (1, 2)]
    texts = [text for bodies in runs for text in bodies.items.reshape(-1).tolist()]
    assert len(set(texts)) == len(texts) == 2 * TEXTS
    assert runs[0].known_from == TEXTS // BATCH_TEXTS * 7 // 8


def test_inputs_are_golden_inputs_with_noise(manifest: Manifest) -> None:
    bodies = made(SINGLE, manifest)
    second = [bodies.inputs(number)[0, 1] for number in range(256)]
    assert np.mean(second) == pytest.approx(2, abs=0.1)
    assert np.std(second) == pytest.approx(0.42, abs=0.1)  # of the item and of the number


def test_unique_numbers_differ_in_float32() -> None:
    most = 10**OWN_DIGITS
    coarsest = np.array([float(own_json(own)) for own in range(most - 1000, most)], np.float32)
    assert len(np.unique(coarsest)) == 1000
    binary = {own_binary(own) for own in (*range(300), *range(OWN_NUMBERS - 300, OWN_NUMBERS))}
    assert len(binary) == 600
    values = np.frombuffer(b"".join(binary), "<f4")
    assert values.min() >= 0.5
    assert values.max() < 1


def test_requests_run_out_instead_of_repeating(manifest: Manifest) -> None:
    bodies = made(BATCH, manifest)
    assert bodies.known_from == KNOWN_FROM // BATCH.items
    last = OWN_NUMBERS // BATCH.items - 1
    bodies.request(last)
    with pytest.raises(BodiesError, match="ask for fewer seconds"):
        bodies.request(last + 1)


def test_large_inputs_are_limited_in_number(manifest: Manifest) -> None:
    large = TensorSpec(name="x", dtype="float32", shape=(-1, 3, 224, 224))
    golden = manifest.golden[0].inputs["x"]
    picture = golden.of(np.zeros((3, 224, 224), np.float32))
    example = manifest.golden[0].model_copy(update={"inputs": {"x": picture}})
    changed = manifest.model_copy(update={"inputs": (large,), "golden": (example,)})
    bodies = made(replace(BINARY, items=1), changed)
    assert 4 <= len(bodies.templates) <= 8
    assert len(body_of(bodies.request(0))) == 602_112


@pytest.mark.parametrize("shape", [(-1, -1), (-1, -1, 2)])
def test_a_model_with_free_dimensions_is_refused(
    manifest: Manifest, shape: tuple[int, ...]
) -> None:
    free = TensorSpec(name="x", dtype="float32", shape=shape)
    with pytest.raises(BodiesError, match="fixed shape"):
        made(SINGLE, manifest.model_copy(update={"inputs": (free,)}))
