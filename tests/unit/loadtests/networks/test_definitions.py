"""The networks have the sizes of those that they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from loadtests.networks import definitions
from loadtests.networks.definitions import NETWORKS, Bert
from loadtests.networks.sizes import BERT, MOBILENET


@pytest.mark.soak
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


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "weights"),
    [
        (MOBILENET, (torch.zeros(2, 3, 224, 224),), 1000, 5_483_032),
        (BERT, (torch.ones(2, 5, dtype=torch.int64),) * 2, 8, 22_567_688),
    ],
)
def test_networks_are_of_full_size(
    name: str, inputs: tuple[torch.Tensor, ...], outputs: int, weights: int
) -> None:
    module = NETWORKS[name]().eval()
    with torch.inference_mode():
        assert module(*inputs).shape == (2, outputs)
    assert sum(each.numel() for each in module.parameters()) == weights
