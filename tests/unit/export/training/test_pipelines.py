"""A stage of a pipeline: what torch does with it before the first step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.pipelining import Schedule1F1B
from torch.nn import functional

from export.training.pipelines import PureStage


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[None]:
    where = f"file://{tmp_path}/store"
    distributed.init_process_group("gloo", init_method=where, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_batch_norms_see_only_microbatches() -> None:
    norm = nn.BatchNorm1d(3)
    stage = PureStage(nn.Sequential(norm), 0, 1, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 2, loss_fn=functional.mse_loss)
    batch = torch.arange(12.0).view(4, 3)
    schedule.step(batch, target=batch)
    assert norm.num_batches_tracked == 2
    assert norm.training


def test_later_stages_infer_shapes_from_ones(alone: None) -> None:
    stage = PureStage(nn.Identity(), 1, 2, torch.device("cpu"))
    output = stage._compute_outputs(torch.full((2,), float("nan")), module=stage.submod)
    assert output.tolist() == [1, 1]
