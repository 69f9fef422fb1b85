"""The command line: what its commands make and print."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from export.cli import COMMANDS, EXPORT, TRAIN
from export.options.artifacts import VARIANTS
from export.variants.registry import MAKERS
from tests.unit.export.command_line import (
    QUICK,
    WITH_CLOSE,
    complete,
    files,
    manifest_of,
    run,
)


class TestExports:
    def test_an_artifact_and_a_summary(self, tmp_path: Path) -> None:
        code, printed = run("tiny", "--out", tmp_path, *QUICK)
        assert code == 0
        assert files(tmp_path) == complete("tiny/1")
        for fact in ("tiny version 1", str(tmp_path / "tiny/1"), "float32 on cpu: 1"):
            assert fact in printed
        for step in ("training", "eager", "script", "timing"):
            assert step in printed

    def test_requested_version_then_the_next(self, tmp_path: Path) -> None:
        assert run("tiny", "--out", tmp_path, "--version", 9, *QUICK)[0] == 0
        assert run("tiny", "--out", tmp_path, "--version", 3, *QUICK)[0] == 0
        assert run("tiny", "--out", tmp_path, *QUICK)[0] == 0
        assert sorted(path.name for path in (tmp_path / "tiny").iterdir()) == ["10", "3", "9"]

    def test_missing_folders_are_made(self, tmp_path: Path) -> None:
        assert run("tiny", "--out", tmp_path / "a/b", *QUICK)[0] == 0
        assert files(tmp_path / "a/b") == complete("tiny/1")

    def test_if_empty_does_nothing_if_artifacts_exist(self, tmp_path: Path) -> None:
        unfinished = tmp_path / "other/1"  # a folder without a manifest is no artifact
        unfinished.mkdir(parents=True)
        assert run("tiny", "--out", tmp_path, "--if-empty", *QUICK)[0] == 0
        assert files(tmp_path) == complete("tiny/1")
        for model in ("tiny", "close"):
            code, printed = run(model, "--out", tmp_path, "--if-empty", *QUICK)
            assert code == 0
            assert printed == f"{tmp_path / 'tiny/1'} exists; nothing to do\n"
        assert files(tmp_path) == complete("tiny/1")

    def test_artifacts_is_the_default_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert run("tiny", *QUICK)[0] == 0
        assert files(tmp_path) == complete("artifacts/tiny/1")

    def test_options_take_effect(self, tmp_path: Path) -> None:
        options = ("--variants=script,bf16", "--max-batch-size=5", "--threads=2")
        code, _ = run(
            "close",
            "--out",
            tmp_path,
            *options,
            "--max-accuracy-drop=100",
            "--plan-precision=bf16",
            "--profile",
        )
        assert code == 0
        manifest = manifest_of(tmp_path / "close/1")
        assert manifest.variants["bf16"].accuracy == 0
        assert manifest.variants["script"].parity.batch_sizes == (1, 2, 3, 4, 5)
        plan = manifest.plan
        assert plan is not None
        device = plan.on("cpu")
        assert device is not None
        assert (plan.precision, device.processor.threads) == ("bf16", 2)
        assert device.times[0].batch_sizes == (1, 2, 4, 5)
        assert "profile-eager.txt" in manifest.files

    def test_weights_are_loaded_instead_of_training(self, tmp_path: Path) -> None:
        weights = tmp_path / "weights.pt"
        torch.save({"weight": torch.tensor([5.0, 7.0])}, weights)
        code, printed = run("tiny", "--out", tmp_path / "out", "--weights", weights, *QUICK)
        assert code == 0
        assert "training" not in printed
        golden = manifest_of(tmp_path / "out/tiny/1").golden[0]
        assert golden.outputs["y"].array().tolist() == [15, 28]

    def test_the_folder_can_be_read_by_others(self, tmp_path: Path) -> None:
        run("tiny", "--out", tmp_path, *QUICK)
        assert (tmp_path / "tiny/1").stat().st_mode & 0o777 == 0o755


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tiny, version 1: do not change."""
    out = tmp_path_factory.mktemp("exported")
    assert run("tiny", "--out", out, *QUICK)[0] == 0
    return out / "tiny/1"


class TestCommands:
    def test_show_prints_the_report_again(self, exported: Path) -> None:
        before = files(exported)
        code, printed = run("show", exported)
        assert code == 0
        for fact in ("tiny version 1", "script.pt", str(exported), "Plan on cpu"):
            assert fact in printed
        assert files(exported) == before

    def test_tune_writes_the_next_version(self, exported: Path, tmp_path: Path) -> None:
        shutil.copytree(exported, tmp_path / "tiny/1")
        options = ("--max-batch-size", 4, "--threads", 2, "--plan-precision", "float32")
        code, printed = run("tune", tmp_path / "tiny/1", *options)
        assert code == 0
        assert "tiny version 2" in printed
        assert files(tmp_path) == complete("tiny/1") + complete("tiny/2")
        plan = manifest_of(tmp_path / "tiny/2").plan
        assert plan is not None
        device = plan.on("cpu")
        assert device is not None
        assert (device.processor.threads, device.times[0].batch_sizes) == (2, (1, 2, 4))


GONE = ("rich", "lightning")


@pytest.mark.parametrize("command", [EXPORT, *COMMANDS])
def test_missing_extra_is_one_sentence(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.extras.find_spec", lambda name: name not in GONE or None)
    arguments = {
        EXPORT: ["tiny"],
        TRAIN: ["tiny", "--out", "run"],
        "sign": ["1", "--key", "k"],
        "compare": [],
    }
    assert run(*([] if command == EXPORT else [command]), *arguments.get(command, ["1"]))[0] == 2
    extra, missing = (TRAIN, "rich, lightning") if command == TRAIN else (EXPORT, "rich")
    assert capsys.readouterr().err == (
        f"torchlane: {command} needs packages that are not installed ({missing}): "
        f"pip install 'torchlane[{extra}]'\n"
    )


class TestHelp:
    def help_of(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
        with pytest.raises(SystemExit) as excinfo:
            run(*arguments, "--help")
        assert excinfo.value.code == 0
        return " ".join(capsys.readouterr().out.split())

    def test_of_every_option_model_command_and_exit_code(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        message = self.help_of(capsys)
        for option in (
            "--out FOLDER",
            "--variants A,B",
            "--max-accuracy-drop POINTS",
            "--version N",
            "--weights FILE",
            "--plan-precision {float32,bf16,fp16,int8}",
            "--max-batch-size N",
            "--threads N",
            "--profile",
        ):
            assert option in message
        for name in VARIANTS:
            assert name in message
        assert f"what to export: {', '.join(WITH_CLOSE)}" in message
        for command in COMMANDS:
            assert f" {command} " in message
        assert "exit codes: 0 " in message

    def test_variants_are_those_of_the_makers(self) -> None:
        assert tuple(MAKERS) == VARIANTS

    @pytest.mark.parametrize(
        ("command", "words"),
        [
            ("adopt", "FILE --input SPEC --out FOLDER --version N --profile"),
            ("tune", "folder --plan-precision --max-batch-size N --threads N"),
            ("show", "folder"),
            ("compare", "usage: torchlane compare"),
        ],
    )
    def test_of_a_command(
        self, capsys: pytest.CaptureFixture[str], command: str, words: str
    ) -> None:
        message = self.help_of(capsys, command)
        assert f"usage: torchlane {command}" in message
        for word in words.split():
            assert word in message
