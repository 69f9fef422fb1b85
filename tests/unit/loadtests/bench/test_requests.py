"""Requests for the benchmark: valid HTTP and JSON, none like the other, also in float32."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import orjson
import pytest

from loadtests.bench.requests import BASES, OWN_DIGITS, Requests
from models.manifest import MANIFEST_FILE, Manifest
from models.tensors import TensorSpec
from tests.artifacts import write_artifact


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    folder = write_artifact(tmp_path, "double")  # float32 [2], golden 1 and 2
    return Manifest.model_validate_json((folder / MANIFEST_FILE).read_bytes())


def test_a_request_is_whole(manifest: Manifest) -> None:
    head, _, body = Requests(manifest, seed=0).request().partition(b"\r\n\r\n")
    first, *headers = head.decode().split("\r\n")
    assert first == "POST /predict HTTP/1.1"
    assert f"Content-Length: {len(body)}" in headers
    assert np.shape(orjson.loads(body)["input"]) == (2,)


def test_inputs_are_golden_ones_under_noise(manifest: Manifest) -> None:
    requests = Requests(manifest, seed=0)
    second = [orjson.loads(requests.body())["input"][1] for _ in range(BASES)]
    assert np.mean(second) == pytest.approx(2, abs=0.1)
    assert np.std(second) == pytest.approx(0.3, abs=0.1)
    assert requests.body_bytes == pytest.approx(len(requests.body()), abs=3)


def test_no_two_inputs_are_equal_in_float32(manifest: Manifest) -> None:
    requests = Requests(manifest, seed=0)
    texts = [requests.request() for _ in range(2 * BASES)] + [requests.body() for _ in range(BASES)]
    inputs = {
        np.asarray(orjson.loads(text[text.index(b"{") :])["input"], np.float32).tobytes()
        for text in texts
    }
    assert len(inputs) == len(texts)


def test_what_makes_a_request_its_own_survives_float32() -> None:
    most = 10**OWN_DIGITS
    numbers = np.arange(most - 1000, most) / most  # where float32 is coarsest
    assert len(np.unique(numbers.astype(np.float32))) == 1000


@pytest.mark.parametrize("shape", [(-1, -1), (-1, -1, 2)])
def test_a_model_with_free_dimensions_is_refused(
    manifest: Manifest, shape: tuple[int, ...]
) -> None:
    free = TensorSpec(name="x", dtype="float32", shape=shape)
    with pytest.raises(ValueError, match="fixed shape"):
        Requests(manifest.model_copy(update={"inputs": (free,)}), seed=0)
