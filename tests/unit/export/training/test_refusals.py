"""What is wrong with a command or a file of a run, in one sentence."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from export.errors import UsageError
from export.options.training import add_train
from export.training import options
from tests.unit.export.command_line import QUICK, run
from tests.unit.export.training.program import Programs

CATALOG = Programs()
TWO = ("--devices", "2")
RUN: dict[str, Any] = {
    "data": "",
    "git_commit": None,
    "hyperparameters": {},
    "kept": 1,
    "epochs": [],
}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing",), "unknown model 'nothing'"),
        (("untrained",), "declares no `training`"),
        (("tiny", "--strategy", "ddp"), "needs several processes: use --devices 2"),
        (("whole", *TWO, "--strategy", "pipeline"), "'whole' declares no stages; use ddp or fsdp"),
        (("tiny", "--devices", "3", "--strategy", "pipeline"), "3 processes cannot be pipelines"),
        (("tiny", *TWO, "--strategy", "pipeline", "--microbatches", "5"), "cannot be cut into 1 x"),
        (("tiny", *TWO, "--strategy", "pipeline", "--compile"), "--compile cannot be combined"),
        (("tied", *TWO, "--strategy", "pipeline"), "front.0.weight is in 2 stages, but must be"),
        (("tiny", "--microbatches", "2"), "--microbatches is for --strategy pipeline"),
        (("tiny", "--compile", "--detect-anomaly"), "--detect-anomaly sees no operations"),
        (("tiny", *TWO, "--strategy", "fsdp", "--precision", "16-mixed"), "use bf16-mixed"),
        (("tiny", *TWO, "--batch-size", "1"), "a batch of 1 is too small for 2 processes"),
        (("tiny", "--batch-size", "1000"), "512 samples are less than one batch of 1000"),
        (("tiny", "--resume"), "omit --resume to begin"),
        (("tiny", "--seed", str(2**31)), "--seed must be 0 to 2147483647"),
        (("tiny", "--num-nodes", "2"), "--num-nodes 2: start it with torchrun"),
        (("tiny", "--accumulate-grad-batches", "17"), "512 samples are less than 17 batches of 32"),
        (("tiny", "--gradient-clip-algorithm", "value"), "needs --gradient-clip-val"),
        (("tiny", "--patience", "2"), "--patience needs --early-stopping METRIC"),
        (("tiny", "--early-stopping", "f1"), "f1: this model has loss, evaluation_loss, accuracy"),
        (
            ("tiny", *TWO, "--strategy", "pipeline", "--gradient-clip-val", "1"),
            "--gradient-clip-val cannot be combined with --strategy pipeline",
        ),
        (
            ("tiny", *TWO, "--strategy", "pipeline", "--accumulate-grad-batches", "2"),
            "--accumulate-grad-batches cannot be combined with --strategy pipeline",
        ),
    ],
)
def test_a_wrong_command(
    arguments: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _ = run("train", *arguments, "--out", tmp_path / "run", catalog=CATALOG)
    assert code == 2
    line = capsys.readouterr().err
    assert message in line
    assert line.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run("train", "tiny", "--accelerator", "cuda", "--out", tmp_path / "run", catalog=CATALOG)
    assert "--accelerator cuda: this machine has none" in capsys.readouterr().err


def test_more_devices_than_available(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    run("train", "tiny", *TWO, "--out", tmp_path / "run", catalog=CATALOG)
    assert "--devices 2: this machine has 1 cuda devices" in capsys.readouterr().err


def test_last_process_of_an_elastic_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = {"TORCHELASTIC_RUN_ID": "1", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    parser = argparse.ArgumentParser()
    add_train(parser)
    parsed = parser.parse_args(["tiny", "--out", str(tmp_path), "--strategy", "ddp"])
    options.check(parsed, CATALOG["tiny"], options.processes(parsed))
    parsed.num_nodes = 2
    with pytest.raises(UsageError, match="torchrun started 1 machines: omit --num-nodes 2"):
        options.processes(parsed)
    parsed.num_nodes = None
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    with pytest.raises(UsageError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for torchrun"):
        options.processes(parsed)


def test_without_tensorboard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = "models.system.extras.find_spec"
    monkeypatch.setattr(known, lambda name: name != "tensorboard" or None)
    arguments = ("train", "tiny", "--out", tmp_path / "run", "--logger", "tensorboard")
    assert run(*arguments, catalog=CATALOG)[0] == 2
    assert "pip install 'torchlane[tensorboard]'" in capsys.readouterr().err


class TestFolder:
    def test_of_another_run(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        run_folder = tmp_path / "run"
        train = ("train", "tiny", "--epochs", "1", "--out", run_folder)
        assert run(*train, catalog=CATALOG)[0] == 0
        assert run(*train, catalog=CATALOG)[0] == 2
        assert "has a run: add --resume, or choose another folder" in capsys.readouterr().err
        assert run(*train[:2], *train[4:], "--resume", "--epochs", "2", catalog=CATALOG)[0] == 2
        assert "--epochs 2: the run began with 1" in capsys.readouterr().err
        resume = (*train[:2], *train[4:], "--resume")
        assert run(*resume, "--gradient-clip-val", "1", catalog=CATALOG)[0] == 2
        message = "--gradient-clip-val 1.0: the run began without it; omit it, or start a new run"
        assert message in capsys.readouterr().err
        assert run("train", "whole", *train[4:], "--resume", catalog=CATALOG)[0] == 2
        assert "belongs to 'tiny', not to 'whole'" in capsys.readouterr().err

    def test_that_began_with_clipping_cannot_become_a_pipeline(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        began = {"epochs": 4, "batch": 32, "seed": 7, "gradient_clip_val": 1.0}
        record = {"model": "tiny", "run": RUN | {"hyperparameters": began}, "step": 1}
        torch.save({"torchlane": record, "optimizer_states": []}, tmp_path / "last.ckpt")
        resume = ("train", "tiny", "--out", tmp_path, "--resume", *TWO, "--strategy", "pipeline")
        assert run(*resume, catalog=CATALOG)[0] == 2
        message = "the run began with --gradient-clip-val, which cannot be combined with --strategy"
        assert message in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({}, "lacks data that --resume needs"),
            ({"step": 1, "steps": 3}, "had 3 steps per epoch and now has 16"),
        ],
    )
    def test_that_cannot_resume(
        self,
        changes: dict[str, int],
        message: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        began = {"epochs": 4, "batch": 32, "seed": 7}
        record = {"model": "tiny", "run": RUN | {"hyperparameters": began}, **changes}
        torch.save({"torchlane": record, "optimizer_states": []}, tmp_path / "last.ckpt")
        assert run("train", "tiny", "--out", tmp_path, "--resume", catalog=CATALOG)[0] == 2
        assert message in capsys.readouterr().err

    def test_interruption_names_resume(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("export.training.run.train", interrupted)
        assert run("train", "tiny", "--out", tmp_path, catalog=CATALOG)[0] == 130
        assert "torchlane: interrupted; --resume continues" in capsys.readouterr().err

    def test_on_a_full_disk(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(expected: object, file: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(torch, "save", full)
        before = signal.getsignal(signal.SIGINT)
        assert run("train", "tiny", "--out", tmp_path, catalog=CATALOG)[0] == 1
        assert "No space left on device" in capsys.readouterr().err
        assert signal.getsignal(signal.SIGINT) == before
        assert not list(tmp_path.glob("*.ckpt")) + list(tmp_path.glob(".*.tmp"))


class Evil:
    """What a pickle may do, if it is let."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


class TestCheckpoint:
    def error_of(self, file: Path, capsys: pytest.CaptureFixture[str]) -> str:
        arguments = ("tiny", "--checkpoint", file, "--out", file.parent / "out", *QUICK)
        code, _ = run(*arguments, catalog=CATALOG)
        assert code == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        return line

    def test_that_is_missing(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert "No such file" in self.error_of(tmp_path / "best.ckpt", capsys)

    @pytest.mark.parametrize("content", [b"", b"hello\n", b"PK\x03\x04" + bytes(99), b"\x80\x02J"])
    def test_that_is_damaged(
        self, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        file = tmp_path / "best.ckpt"
        file.write_bytes(content)
        assert "damaged" in self.error_of(file, capsys)

    def test_that_would_run_code(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file, mark = tmp_path / "best.ckpt", tmp_path / "ran"
        torch.save({"torchlane": Evil(mark)}, file)
        assert "has more than tensors and plain data" in self.error_of(file, capsys)
        assert not mark.exists()

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"torchlane": {"model": "digits"}}, "belongs to 'digits', not to 'tiny'"),
            ({"torchlane": {"model": "tiny"}}, "the record of its run is wrong"),
            ({"torchlane": {"model": "tiny", "run": RUN}}, "has no weights by name"),
            (
                {
                    "torchlane": {"model": "tiny", "run": RUN},
                    "state_dict": {"module.x": torch.zeros(1)},
                },
                "does not fit the model: it lacks 4 of 4 tensors (front.0.weight",
            ),
        ],
    )
    def test_of_something_else(
        self,
        content: dict[str, object],
        message: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        file = tmp_path / "best.ckpt"
        torch.save(content, file)
        assert message in self.error_of(file, capsys)
