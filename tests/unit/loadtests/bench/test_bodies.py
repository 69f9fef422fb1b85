"""Requests of the benchmark: whole HTTP, and no input twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from loadtests.bench.bodies import (
    TEXTS,
    Bodies,
    BodiesError,
    bodies_of,
)
from loadtests.bench.dialects import dialect_of
from loadtests.bench.workloads import OURS, PYTRITON, WORKLOADS, Workload
from models.manifest import MANIFEST_FILE, Manifest
from models.tensors import Array
from tests.artifacts import write_artifact

BY_NAME = {workload.name: workload for workload in WORKLOADS}
UNIQUE = [BY_NAME[name] for name in ("json-32", "binary-32", "batch-json", "batch-binary")]
ZIPF = BY_NAME["zipf"]


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    folder = write_artifact(tmp_path, "double")  # float32 [2], golden 1 and 2
    return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())


def built(workload: Workload, manifest: Manifest, server: str = OURS, seed: int = 0) -> Bodies:
    return bodies_of(workload, manifest, dialect_of(server, workload, manifest), seed)


def inputs_in(workload: Workload, body: bytes) -> Array:
    """What a server reads of a body: float32 [items, 2]."""
    if workload.body == "binary":
        return np.frombuffer(body, "<f4").reshape(-1, 2)
    loaded = orjson.loads(body)
    return np.array(loaded.get("inputs") or [loaded["input"]], np.float32)


@pytest.mark.parametrize("workload", [*UNIQUE, ZIPF], ids=lambda each: each.name)
def test_requests_are_complete(workload: Workload, manifest: Manifest) -> None:
    bodies = built(workload, manifest)
    for number in (0, 1, 257):
        path, headers, body = bodies.call(number)
        assert path == ("/batch-predict" if workload.items > 1 else "/predict")
        assert headers["Content-Length"] == str(len(body))
        assert inputs_in(workload, body).shape == (workload.items, 2)


@pytest.mark.parametrize("workload", UNIQUE, ids=lambda each: each.name)
def test_inputs_of_a_run_differ_in_float32(workload: Workload, manifest: Manifest) -> None:
    bodies = built(workload, manifest)
    bodies_of_run = [bodies.call(number)[2] for number in range(600)]
    items = [item.tobytes() for body in bodies_of_run for item in inputs_in(workload, body)]
    assert len(set(items)) == len(items) == 600 * workload.items


def test_repeated_bodies_follow_zipfs_law(manifest: Manifest) -> None:
    bodies = built(ZIPF, manifest)
    assert {bodies.request(number) for number in range(ZIPF.repeated)} == {
        template
        for (template,) in bodies.templates  # each once at first, which fills the cache
    }
    requests = [bodies.request(number) for number in range(ZIPF.repeated, 5000)]
    counts = sorted((requests.count(each) for each in set(requests)), reverse=True)
    # the most popular of a hundred, by Zipf's law: 1 of 5.19
    assert counts[0] == pytest.approx(len(requests) / 5.19, rel=0.15)
    assert counts[0] == pytest.approx(2 * counts[1], rel=0.25)


@pytest.mark.parametrize(("server", "model"), [(OURS, "double"), (PYTRITON, "model")])
def test_binary_tensors_are_framed_as_the_protocol_says(
    manifest: Manifest, server: str, model: str
) -> None:
    workload = BY_NAME["v2-batch-binary"]
    path, headers, body = built(workload, manifest, server).call(3)
    assert path == f"/v2/models/{model}/infer"
    assert headers["Content-Length"] == str(len(body))
    size = int(headers["Inference-Header-Content-Length"])
    (tensor,) = orjson.loads(body[:size])["inputs"]
    assert tensor["shape"] == [workload.items, 2]
    assert tensor["parameters"] == {"binary_data_size": len(body) - size}
    assert len(body) - size == 4 * 2 * workload.items


def test_sentences_of_two_runs_all_differ(manifest: Manifest) -> None:
    workload = BY_NAME["text-batch"]
    texts: list[str] = []
    for seed in (1, 2):
        bodies = built(workload, manifest, seed=seed)
        calls = (bodies.call(number)[2] for number in range(bodies.most))
        texts += (text for body in calls for text in orjson.loads(body)["input"])
    assert len(set(texts)) == len(texts) == 2 * TEXTS


def test_requests_run_out_instead_of_repeating(manifest: Manifest) -> None:
    bodies = built(BY_NAME["batch-json"], manifest)
    bodies.request(bodies.most - 1)
    with pytest.raises(BodiesError, match="ask for fewer seconds"):
        bodies.request(bodies.most)
