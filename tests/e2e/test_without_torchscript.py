"""Artifacts without a TorchScript variant, served by a process in which there is no `torch.jit`."""

from __future__ import annotations

from pathlib import Path

import httpx
import numpy as np

from tests.artifacts import change_manifest, small_answer, small_batch, write_small
from tests.e2e.server import running

VARIANTS = ("compiled", "onnx", "openvino")


def write(root: Path, *variants: str) -> None:
    """A model that is named for its variants."""
    name = "-".join(variants)
    folder = write_small(root / "made", list(variants))
    change_manifest(folder, lambda manifest: manifest.update(model=name))
    (root / "models" / name).mkdir(parents=True)
    folder.rename(root / "models" / name / "1")


def test_artifacts_are_served_without_torchscript(tmp_path: Path) -> None:
    for variant in VARIANTS:
        write(tmp_path, variant)
    write(tmp_path, "script", "onnx")
    batch = small_batch(5)
    items = [{name: batch[name][row].tolist() for name in batch} for row in range(5)]
    module = "tests.e2e.without_torchscript"
    with running(tmp_path / "models", tmp_path / "log", module) as server:
        for name in (*VARIANTS, "script-onnx"):
            url = f"{server.url}/models/{name}/batch-predict"
            answer = httpx.post(url, json={"inputs": items})
            assert answer.status_code == 200, answer.text
            got = [each["outputs"]["y"] for each in answer.json()["predictions"]]
            np.testing.assert_allclose(got, small_answer(batch)["y"], rtol=1e-4, atol=1e-5)
    left_out = [line for line in server.log.splitlines() if "variant_unusable" in line]
    assert {"script.pt is TorchScript, which" in line for line in left_out} == {True}
