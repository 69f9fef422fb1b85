"""Lightning's own options: clipping, accumulation, early stopping, loggers and callbacks."""

from __future__ import annotations

import csv
import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.export.command_line import QUICK, run
from tests.unit.export.training import runs
from tests.unit.export.training.program import KILLED_AT, Programs, interrupted

CATALOG = Programs()


def train(model: str, out: Path, *options: object) -> str:
    code, printed = run("train", model, "--out", out, *options, catalog=CATALOG)
    assert code == 0, printed
    return printed


def hyperparameters(out: Path) -> dict[str, Any]:
    numbers: dict[str, Any] = json.loads((out / "curves.json").read_bytes())["hyperparameters"]
    return numbers


def test_two_half_batches_are_one(tmp_path: Path) -> None:
    """The samples of an update are the same, so are its gradients but for rounding."""
    train("tiny", tmp_path / "whole", "--epochs", 2)
    halves = ("--batch-size", 16, "--accumulate-grad-batches", 2)
    train("tiny", tmp_path / "halves", "--epochs", 2, *halves)
    assert runs.largest_difference(tmp_path / "whole", tmp_path / "halves") < 1e-5
    assert hyperparameters(tmp_path / "halves")["accumulate_grad_batches"] == 2


def test_an_epoch_has_whole_updates(tmp_path: Path) -> None:
    """Of 16 batches, five at a time."""
    train("tiny", tmp_path, "--epochs", 2, "--accumulate-grad-batches", 5, "--checkpoint-every", 7)
    record = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert (record["torchlane"]["step"], record["torchlane"]["steps"]) == (30, 15)
    assert {int(each["step"]) for each in record["optimizer_states"][0]["state"].values()} == {6}


def test_gradients_are_cut_off(tmp_path: Path) -> None:
    """One step of rate 1: what the weights lose are the gradients."""
    begun = begin("digits-step")

    def lost(name: str, *options: object) -> torch.Tensor:
        train("digits-step", tmp_path / name, *options)
        weights = runs.weights(tmp_path / name)
        return torch.cat([(weights[each] - begun[each]).flatten() for each in begun])

    assert float(lost("free").abs().max()) > 1e-2
    for algorithm, order in (("norm", 2), ("value", torch.inf)):
        clip = ("--gradient-clip-val", 1e-3, "--gradient-clip-algorithm", algorithm)
        assert float(lost(algorithm, *clip).norm(order)) == pytest.approx(1e-3, rel=1e-2)


def begin(model: str) -> dict[str, torch.Tensor]:
    """The trained weights at the beginning of a run."""
    definition = CATALOG[model]
    module = definition.build()
    assert definition.training is not None
    definition.training.start(module)
    return {f"module.{name}": each.detach() for name, each in module.named_parameters()}


def test_a_run_that_no_longer_improves_ends(tmp_path: Path) -> None:
    options = ("--early-stopping", "calls", "--patience", 2, "--min-delta", 0.1)
    printed = train("worse", tmp_path, *options)
    assert "stopped after epoch 3 of 9: Monitored metric calls did not improve" in printed
    assert [each["epoch"] for each in runs.curve(tmp_path)] == [1, 2, 3]
    numbers = hyperparameters(tmp_path)
    rest = {name: numbers[name] for name in ("early_stopping", "patience", "min_delta")}
    assert rest == {"early_stopping": "calls", "patience": 2, "min_delta": 0.1}
    before = (tmp_path / "last.ckpt").stat().st_mtime_ns
    assert "is finished" in train("worse", tmp_path, "--resume")
    assert (tmp_path / "last.ckpt").stat().st_mtime_ns == before


def test_a_run_that_improves_goes_on(tmp_path: Path) -> None:
    train("tiny", tmp_path, "--early-stopping", "accuracy", "--patience", 1)
    assert len(runs.curve(tmp_path)) >= 3


def test_declared_callbacks_see_each_epoch_and_are_resumed(tmp_path: Path) -> None:
    options = ("train", "counted", "--out", tmp_path)
    assert run(*options, catalog=interrupted("counted"))[0] == 130
    printed = train("counted", tmp_path, "--resume")
    assert "stopped after epoch 3 of 9: a callback ended it" in printed


ALL = (
    *("--accumulate-grad-batches", 3, "--gradient-clip-val", 0.5, "--checkpoint-every", 4),
    *("--early-stopping", "evaluation_loss", "--patience", 5, "--logger", "csv"),
)


@pytest.mark.soak
def test_a_killed_run_resumes_with_the_same_curve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill -9 in the middle of an epoch; the options are those that the run began with."""
    train("paced", tmp_path / "whole", "--epochs", 3, *ALL)
    out = tmp_path / "run"
    monkeypatch.setenv(KILLED_AT, "21")
    process = runs.start("train", "paced", "--out", out, "--epochs", 3, *ALL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    monkeypatch.delenv(KILLED_AT)
    printed = train("paced", out, "--resume", "--logger", "csv")
    assert "resumes after step 18 of 45; steps 19 to 20 are repeated" in printed
    assert runs.curve(out) == runs.curve(tmp_path / "whole")
    assert runs.largest_difference(out, tmp_path / "whole") == 0
    steps = [int(row["step"]) for at in (0, 1) for row in logged(out, at) if row["accuracy"]]
    assert steps == [15, 30, 45]
    exported = ("paced", "--checkpoint", out / "best.ckpt", "--out", tmp_path / "out", *QUICK)
    assert run(*exported, catalog=CATALOG)[0] == 0


def logged(out: Path, version: int) -> list[dict[str, str]]:
    """The rows that a start of the run logged."""
    with (out / f"csv/version_{version}/metrics.csv").open() as file:
        return list(csv.DictReader(file))


def test_losses_and_metrics_are_logged(tmp_path: Path) -> None:
    train("tiny", tmp_path, "--logger", "csv")
    rows = logged(tmp_path, 0)
    assert [int(row["step"]) for row in rows] == [16, 32, 48, 50, 64]
    for row, epoch in zip((row for row in rows if row["epoch"]), runs.curve(tmp_path), strict=True):
        assert float(row["loss"]) == pytest.approx(epoch["loss"])
        assert float(row["evaluation_loss"]) == pytest.approx(epoch["evaluation_loss"])
        assert float(row["accuracy"]) == pytest.approx(epoch["metrics"]["accuracy"])
    (step,) = (row for row in rows if row["loss_step"])
    assert 0 < float(step["loss_step"]) < float(rows[0]["loss"])
    assert float(step["lr"]) == 0.02


def test_tensorboard_shows_a_run_and_its_continuation(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    options = ("train", "tiny", "--out", tmp_path, "--logger", "tensorboard")
    assert run(*options, catalog=interrupted("tiny"))[0] == 130
    train("tiny", tmp_path, "--resume", "--logger", "tensorboard")
    board = events.EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    assert [each.step for each in board.Scalars("accuracy")] == [16, 32, 48, 64]
    values = [each.value for each in board.Scalars("evaluation_loss")]
    assert values == pytest.approx([each["evaluation_loss"] for each in runs.curve(tmp_path)])
