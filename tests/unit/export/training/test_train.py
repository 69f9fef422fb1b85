"""Runs of one process: what they leave, how they go on, and what they find; two smokes of two."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from models.manifest import Manifest
from tests.unit.export.command_line import QUICK, run
from tests.unit.export.training import runs
from tests.unit.export.training.program import Diverging, Programs, interrupted

CATALOG = Programs()


def train(model: str, out: Path, *options: object) -> tuple[int, str]:
    return run("train", model, "--out", out, *options, catalog=CATALOG)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of `tiny`: do not change."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    code, printed = train("tiny", out)
    assert code == 0
    assert "epoch 4: loss 0." in printed
    assert f"torchlane export tiny --checkpoint {out}/best.ckpt" in printed
    return out


def test_a_run_learns_and_keeps_checkpoints_and_curves(finished: Path) -> None:
    names = {path.name for path in finished.iterdir()}
    assert names == {"best.ckpt", "last.ckpt", "curves.json", "curves.svg", "reached"}
    epochs = runs.curve(finished)
    assert [each["epoch"] for each in epochs] == [1, 2, 3, 4]
    assert epochs[-1]["evaluation_loss"] < epochs[0]["evaluation_loss"]
    assert epochs[-1]["metrics"]["accuracy"] > 0.9
    assert "evaluation loss" in (finished / "curves.svg").read_text()


def test_the_plain_loop_ends_with_the_same_weights(finished: Path) -> None:
    module = CATALOG["tiny"].build()
    assert CATALOG["tiny"].train is not None
    CATALOG["tiny"].train(module, lambda done, total, note: None)
    for name, weight in runs.weights(finished).items():
        assert torch.equal(weight, module.state_dict()[name.removeprefix("module.")])


def test_exported_checkpoint_names_its_run(finished: Path, tmp_path: Path) -> None:
    best = finished / "best.ckpt"
    out = ["--out", tmp_path]
    code, printed = run("tiny", "--checkpoint", best, *out, *QUICK, catalog=CATALOG)
    assert code == 0, printed
    folder = tmp_path / "tiny/1"
    manifest = Manifest.model_validate_json((folder / "manifest.json").read_bytes())
    assert manifest.training is not None
    assert manifest.training.data == "points that are drawn"
    assert manifest.training.git_commit == manifest.git_commit
    assert manifest.training.hyperparameters["batch"] == 32
    assert manifest.training.hyperparameters["optimizer"] == "Adam"
    assert manifest.training.hyperparameters["lr"] == 0.02
    assert manifest.training.kept == 4
    assert manifest.training.epochs[3].metrics["accuracy"] == runs.accuracy(finished)
    page = (folder / "report.html").read_text()
    assert 'aria-labelledby="curves-' in page
    assert "points that are drawn" in page
    assert "training" not in manifest.public()
    _, display = run("show", folder)
    assert "These are the weights after epoch 4." in display


def test_interrupted_run_resumes_with_the_same_curve(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code, printed = run("train", "tiny", "--out", out, catalog=interrupted("tiny"))
    assert code == 130
    (step,) = re.findall(r"stopped after step (\d+) of 64; --resume continues there", printed)
    code, printed = train("tiny", out, "--resume")
    assert code == 0
    assert f"resumes after step {step} of 64; none is repeated" in printed
    assert runs.curve(out) == runs.curve(finished)
    assert runs.largest_difference(out, finished) == 0


def test_a_finished_run_is_not_repeated(finished: Path) -> None:
    before = (finished / "last.ckpt").stat().st_mtime_ns
    code, printed = train("tiny", finished, "--resume")
    assert code == 0
    assert "is finished" in printed
    assert (finished / "last.ckpt").stat().st_mtime_ns == before


def test_a_run_in_another_precision(tmp_path: Path) -> None:
    assert train("tiny", tmp_path, "--epochs", "1", "--precision", "bf16-true")[0] == 0
    assert runs.accuracy(tmp_path) > 0.5


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nan", r"the first NaN: `log` at .*program\.py, line \d+: `.*torch\.log\(x\)\)`"),
        ("nan-backward", r"in the backward of `SqrtBackward0`, of what .*: `root = torch\.sqrt\("),
    ],
)
def test_the_first_nan_is_named(
    model: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = train(model, tmp_path / "run", "--detect-anomaly")
    assert code == 1
    assert re.search(message, capsys.readouterr().err)


DIVERGED = (
    r"training diverged: the loss is NaN or infinite at step (\d+) of 64 \(epoch (\d)\); kept: "
)


class TestDiverged:
    """Steps: 16 an epoch; from step 41 on the loss of `diverging` is NaN with 40 good ones."""

    def test_the_last_good_checkpoints_are_kept_and_named(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Diverging.__init__, "__defaults__", (40,))
        out = tmp_path / "run"
        code, printed = train("diverging", out, "--checkpoint-every", 5)
        assert (code, "written" in printed) == (1, False)
        message = re.search(DIVERGED + "(.*);", capsys.readouterr().err)
        assert message is not None
        assert message.groups() == (
            *("41", "3"),
            f"{out}/best.ckpt (epoch 2) and {out}/last.ckpt (step 40)",
        )
        assert all(bool(each.isfinite().all()) for each in runs.weights(out).values())
        last = torch.load(out / "last.ckpt", weights_only=True)
        assert last["torchlane"]["step"] == 40
        assert all(bool(each.isfinite().all()) for each in last["state_dict"].values())
        assert [each["epoch"] for each in runs.curve(out)] == [1, 2]

    def test_in_the_first_epoch_nothing_is_kept(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert train("nan", tmp_path / "run")[0] == 1
        message = re.search(DIVERGED + "nothing; ", capsys.readouterr().err)
        assert message is not None
        assert message.groups() == ("1", "1")
        assert not list((tmp_path / "run").glob("*.ckpt"))

    def test_weights_are_checked_before_they_are_saved(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert train("exploding", tmp_path / "run", "--checkpoint-every", 1)[0] == 1
        assert "weights are NaN or infinite at step 1 of 64 (epoch 1)" in capsys.readouterr().err
        assert not list((tmp_path / "run").glob("*.ckpt"))

    def test_by_its_evaluation(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert train("evaluated-nan", tmp_path / "run")[0] == 1
        message = capsys.readouterr().err
        assert "the evaluation loss is NaN or infinite at step 16 of 64 (epoch 1)" in message
        assert not (tmp_path / "run/best.ckpt").exists()

    def test_in_the_plain_loop(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        code, _ = run("nan", "--out", tmp_path, *QUICK, catalog=CATALOG)
        assert code == 1
        message = capsys.readouterr().err
        assert message.startswith("torchlane: training diverged: the loss is nan at step 1 of 64; ")
        assert not list(tmp_path.rglob("manifest.json"))

    def test_an_undefined_metric_is_only_a_warning(self, tmp_path: Path) -> None:
        code, printed = train("undefined-metric", tmp_path / "run", "--epochs", 2)
        assert code == 0
        assert "warning: the metric undefined was NaN or infinite in epoch 1, 2" in printed

    @pytest.mark.soak
    @pytest.mark.parametrize("strategy", ["ddp", "fsdp", "pipeline"])
    def test_all_processes_end(self, strategy: str, tmp_path: Path) -> None:
        process = runs.start(
            *("train", "diverging-late", "--out", tmp_path / "run"),
            *("--devices", 2, "--strategy", strategy),
        )
        printed, _ = process.communicate(timeout=120)
        assert process.returncode == 1, printed
        assert len(re.findall(DIVERGED, printed)) == 1
        assert re.search(r"/best\.ckpt \(epoch [12]\) and .*/last\.ckpt \(step (16|32)\)", printed)
        assert all(bool(e.isfinite().all()) for e in runs.weights(tmp_path / "run").values())


def test_weights_of_nan_are_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = CATALOG["whole"].build().state_dict()
    state["front.0.bias"][3] = torch.nan
    torch.save(state, tmp_path / "weights.pt")
    options = ["--weights", tmp_path / "weights.pt", "--out", tmp_path / "out", *QUICK]
    assert run("whole", *options, catalog=CATALOG)[0] == 1
    message = capsys.readouterr().err
    assert "the weights of 'whole' are damaged: 1 of 16 numbers of front.0.bias are NaN" in message
    assert not list((tmp_path / "out").rglob("manifest.json"))


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            "wrong-loss",
            (),
            r"KeyError: 'second', at .*program\.py, line \d+: `.*table\[\"second\"\]`",
        ),
        (
            "wrong-rows",
            ("--workers", 1),
            r"IndexError: .*, at .*program\.py, line \d+: `return tuple",
        ),
        (
            "wrong-data",
            (),
            r"FileNotFoundError: .*points\.csv.*, at .*program\.py, line \d+: `raise ",
        ),
    ],
)
def test_an_error_in_the_users_code_has_file_and_line(
    model: str,
    options: tuple[object, ...],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert train(model, tmp_path / "run", *options)[0] == 1
    error = capsys.readouterr().err
    assert re.search(f"^torchlane: training {model} fails: {message}", error), error
    assert error.count("\n") == 1


def test_the_profile_names_the_slow_operation(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    code, printed = train("slow-operation", tmp_path / "run", "--profile", "--epochs", "1")
    assert code == 0
    assert "profiler_start" not in capfd.readouterr().err  # of the recorder itself
    longest = next(line for line in printed.splitlines() if " %  " in line)
    assert longest.endswith("aten::_linalg_svd")
    assert (tmp_path / "run/profile.json.gz").stat().st_size > 1000
    assert "aten::_linalg_svd" in (tmp_path / "run/profile.txt").read_text()


def test_checkpoint_is_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from export.training import keeper  # noqa: PLC0415 # imports the trainer

    path = tmp_path / "last.ckpt"
    keeper.AtomicIO().save_checkpoint({"step": 1}, path)

    def full(expected: object, file: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space"):
        keeper.AtomicIO().save_checkpoint({"step": 2}, path)
    assert torch.load(path, weights_only=True) == {"step": 1}


def test_two_processes_have_equal_gradients_to_one(tmp_path: Path) -> None:
    """Of one step of digits, on the whole batch; test_strategies.py has every strategy."""
    assert train("digits-step", tmp_path / "alone")[0] == 0
    runs.train("digits-step", tmp_path / "run", "--devices", 2, "--strategy", "pipeline")
    assert runs.largest_difference(tmp_path / "run", tmp_path / "alone") < 1e-5
    run = json.loads((tmp_path / "run/curves.json").read_bytes())
    assert run["hyperparameters"]["processes"] == 2
