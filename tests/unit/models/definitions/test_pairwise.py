"""Pairwise distances against the plainest loop there is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from models.definitions.pairwise import DEFINITION
from models.manifest import Manifest
from models.tensors import Array


def loop(a: Array, b: Array) -> Array:
    """Points [n, p, 2] and [n, q, 2] to distances [n, p, q], in float64."""
    n, p, q = len(a), a.shape[1], b.shape[1]
    out = np.zeros((n, p, q))
    for item in range(n):
        for i in range(p):
            for j in range(q):
                out[item, i, j] = sum(
                    (float(a[item, i, k]) - float(b[item, j, k])) ** 2 for k in range(2)
                )
    return out


def distances(a: Array, b: Array) -> Array:
    made: Array = DEFINITION.build()(torch.from_numpy(a), torch.from_numpy(b)).numpy()
    return made


@pytest.mark.parametrize("batch", [1, 2, 7])
def test_distances_match_a_loop(batch: int) -> None:
    for seed in range(5):
        inputs = DEFINITION.random_inputs(np.random.default_rng(seed), batch)
        got = distances(inputs["a"], inputs["b"])
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, loop(inputs["a"], inputs["b"]), rtol=1e-5, atol=1e-6)


def test_nearly_equal_points_keep_their_distance() -> None:
    a = np.array([[[1000.0, 1000.0]]], np.float32)
    b = np.nextafter(a, np.float32(np.inf))
    np.testing.assert_allclose(distances(a, b), loop(a, b), rtol=1e-6)
    assert distances(a, b)[0, 0, 0] > 0


def test_exported_artifact_has_the_expected_variants(repository: Path) -> None:
    text = (repository / "pairwise/1/manifest.json").read_bytes()
    manifest = Manifest.model_validate_json(text)
    assert {"script", "bf16"} <= set(manifest.variants)
    assert manifest.accuracy is None
    reasons = {each.variant: each.reason for each in manifest.left_out}
    assert reasons["int8"].startswith(
        "convolutions, and linear layers of at least 4,096 weights, do 0%"
    )
