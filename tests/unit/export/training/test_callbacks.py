"""Callbacks of Lightning in a declaration: what they may do, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from tests.unit.export.command_line import QUICK, run
from tests.unit.export.training import runs
from tests.unit.export.training.program import Network, of


@pytest.fixture
def made() -> ModuleType:
    """The module with the callbacks; it imports Lightning, which takes seconds."""
    from tests.unit.export.training import callbacks  # noqa: PLC0415

    return callbacks


def train(out: Path, *options: object, callbacks: Any = None) -> tuple[int, str]:
    catalog = {"tiny": of(Network, callbacks=callbacks)}
    return run("train", "tiny", "--out", out, *options, catalog=catalog)


@pytest.mark.parametrize(
    ("update", "epochs", "weights"), [(4, 0, "last.ckpt"), (20, 1, "best.ckpt")]
)
def test_a_callback_ends_a_run_within_an_epoch(
    update: int, epochs: int, weights: str, tmp_path: Path, made: ModuleType
) -> None:
    code, printed = train(tmp_path, callbacks=lambda: [made.StopsAt(update)])
    assert code == 0
    assert f"stopped after step {update} of 64: a callback ended it" in printed
    assert f"written: {tmp_path / 'last.ckpt'} (step {update})" in printed
    assert f"--checkpoint {tmp_path / weights}" in printed
    record = torch.load(tmp_path / "last.ckpt", weights_only=True)["torchlane"]
    assert (record["step"], len(record["run"]["epochs"])) == (update, epochs)
    assert "is finished" in train(tmp_path, "--resume")[1]
    exported = ("tiny", "--checkpoint", tmp_path / weights, "--out", tmp_path / "out", *QUICK)
    assert run(*exported, catalog={"tiny": of(Network)})[0] == 0


def test_a_callback_ends_a_run_after_a_whole_update(tmp_path: Path, made: ModuleType) -> None:
    """At batch 5 of an update of 3 batches."""
    code, printed = train(
        tmp_path, "--accumulate-grad-batches", 3, callbacks=lambda: [made.StopsWithin()]
    )
    assert code == 0
    assert "stopped after step 6 of 60" in printed


def test_a_callback_ends_a_run_before_its_first_step(tmp_path: Path, made: ModuleType) -> None:
    code, printed = train(
        tmp_path, callbacks=lambda: [made.callbacks.Timer(duration={"seconds": 0})]
    )
    assert code == 1
    assert "stopped after step 0 of 64: a callback ended it before the first step" in printed


@pytest.mark.soak
def test_a_callback_of_one_process_ends_all(tmp_path: Path) -> None:
    options = ("--devices", 2, "--accelerator", "cpu")
    assert "stopped after step 8 of 64" in runs.train("stopped-by-one", tmp_path, *options)


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (
            lambda made: made.callbacks.GradientAccumulationScheduler({0: 2}),
            "use --accumulate-grad-batches",
        ),
        (
            lambda made: made.callbacks.StochasticWeightAveraging(1e-2),
            "Lightning's epochs, of which a run has one",
        ),
        (
            lambda made: made.callbacks.ModelCheckpoint(),
            "export keeps the checkpoints itself; see `keep`",
        ),
    ],
)
def test_callbacks_that_cannot_work(
    callback: Any,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    made: ModuleType,
) -> None:
    assert train(tmp_path / "run", callbacks=lambda: [callback(made)])[0] == 2
    line = capsys.readouterr().err
    assert f"`callbacks` cannot have {type(callback(made)).__name__}: " in line
    assert message in line
    assert not (tmp_path / "run").exists()


def test_a_callback_that_accumulates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: ModuleType
) -> None:
    assert train(tmp_path, callbacks=lambda: [made.Accumulates()])[0] == 1
    assert "sets accumulate_grad_batches to 2, but the run has 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda made: None, "must return a list of callbacks, got None"),
        (lambda made: made.Accumulates(), "must return a list of callbacks, got "),
        (lambda made: ["x"], "must return callbacks of `lightning.pytorch`, got builtins.str"),
        (
            lambda made: [made.callbacks.EarlyStopping("loss")],
            "--early-stopping: `callbacks` has an EarlyStopping for",
        ),
    ],
)
def test_callbacks_that_are_wrong(
    value: Any,
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    made: ModuleType,
) -> None:
    assert (
        train(tmp_path / "run", "--early-stopping", "loss", callbacks=lambda: value(made))[0] == 2
    )
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_what_lightning_rejects_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], made: ModuleType
) -> None:
    assert (
        train(tmp_path, callbacks=lambda: [made.callbacks.Timer(), made.callbacks.Timer()])[0] == 1
    )
    line = capsys.readouterr().err
    assert line.startswith("torchlane: training tiny fails: ")
    assert "Found more than one stateful callback of type `Timer`" in line
