"""The networks have the sizes of those that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loadtests.networks import definitions
from loadtests.networks.definitions import Bert
from loadtests.networks.sizes import BERT


def test_a_written_program_answers_like_its_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxscript", reason="needs pip install 'torchlane[onnx-export]'")

    def small() -> Bert:
        return Bert(layers=1, width=12, heads=2)

    monkeypatch.setattr(definitions, "NETWORKS", {BERT: small})
    definitions.write(BERT, tmp_path)
    ids = torch.tensor([[5, 9, 40], [7, 7, 8]])
    mask = torch.tensor([[1, 1, 1], [1, 1, 0]])
    torch.manual_seed(1)
    eager, written = small().eval(), torch.export.load(tmp_path / f"{BERT}.pt2").module()
    with torch.inference_mode():
        torch.testing.assert_close(written(ids, mask), eager(ids, mask))
