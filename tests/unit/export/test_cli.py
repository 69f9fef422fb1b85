"""The command line: what its commands make and print."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from export.cli import COMMANDS, EXPORT, TRAIN
from export.options.artifacts import VARIANTS
from export.variants.registry import MAKERS
from tests.unit.export.command_line import QUICK, complete, files, manifest_of, run
from tests.unit.export.measured import on_cpu


class TestExports:
    def test_an_artifact_and_a_summary(self, tmp_path: Path) -> None:
        out = tmp_path / "missing/too"
        code, printed = run("tiny", "--out", out, *QUICK, "--variants", "script,int8")
        assert code == 0
        assert files(out) == complete("tiny/1")
        for fact in ("tiny version 1", str(out / "tiny/1"), "float32 on cpu: 1"):
            assert fact in printed
        steps = [line.split()[0] for line in printed.splitlines()[:5]]
        assert steps == ["training", "eager", "script", "int8", "timing"]
        assert len(printed.splitlines()) <= 16
        assert printed.count("left out") == printed.count("int8") == 1

    def test_if_empty_does_nothing_if_artifacts_exist(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        unfinished = Path("artifacts/other/1")  # a folder without a manifest is no artifact
        unfinished.mkdir(parents=True)
        assert run("tiny", "--if-empty", *QUICK)[0] == 0
        assert files(tmp_path) == complete("artifacts/tiny/1")
        code, printed = run("close", "--if-empty", *QUICK)
        assert (code, printed) == (0, "artifacts/tiny/1 exists; nothing to do\n")
        assert files(tmp_path) == complete("artifacts/tiny/1")

    def test_options_take_effect(self, tmp_path: Path) -> None:
        options = ("--variants=script,bf16", "--max-batch-size=5", "--threads=2", "--version=7")
        rest = ("--max-accuracy-drop=100", "--plan-precision=bf16", "--profile")
        assert run("close", "--out", tmp_path, *options, *rest)[0] == 0
        manifest = manifest_of(tmp_path / "close/7")
        assert manifest.variants["bf16"].accuracy == 0
        assert manifest.variants["script"].parity.batch_sizes == (1, 2, 3, 4, 5)
        assert manifest.plan is not None
        device = on_cpu(manifest.plan)
        assert (manifest.plan.precision, device.processor.threads) == ("bf16", 2)
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


def test_show_prints_the_report_again(exported: Path) -> None:
    before = files(exported)
    code, printed = run("show", exported)
    assert code == 0
    for fact in ("tiny version 1", "script.pt", str(exported), "Plan on cpu"):
        assert fact in printed
    assert files(exported) == before


def test_tune_writes_the_next_version(exported: Path, tmp_path: Path) -> None:
    shutil.copytree(exported, tmp_path / "tiny/1")
    options = ("--max-batch-size", 4, "--threads", 2, "--plan-precision", "float32")
    code, printed = run("tune", tmp_path / "tiny/1", *options)
    assert code == 0
    assert "tiny version 2" in printed
    plan = manifest_of(tmp_path / "tiny/2").plan
    device = on_cpu(plan)
    assert (device.processor.threads, device.times[0].batch_sizes) == (2, (1, 2, 4))


GONE = ("rich", "lightning")


@pytest.mark.parametrize("command", [EXPORT, *COMMANDS])
def test_missing_extra_is_one_sentence(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("models.system.extras.find_spec", lambda name: name not in GONE or None)
    arguments = {EXPORT: ["tiny"], TRAIN: ["tiny", "--out", "run"], "compare": []}
    arguments["sign"] = ["1", "--key", "k"]
    arguments["handler"] = ["1", "--example", "e"]
    assert run(*([] if command == EXPORT else [command]), *arguments.get(command, ["1"]))[0] == 2
    extra, missing = (TRAIN, "rich, lightning") if command == TRAIN else (EXPORT, "rich")
    assert capsys.readouterr().err == (
        f"torchlane: {command} needs packages that are not installed ({missing}): "
        f"pip install 'torchlane[{extra}]'\n"
    )


def test_help_names_models_commands_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as excinfo:
        run("--help")
    assert excinfo.value.code == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "what to export: tiny, liar, moody" in printed
    assert all(f" {command} " in printed for command in COMMANDS)
    assert "exit codes: 0 " in printed


def test_variants_are_those_of_the_makers() -> None:
    assert tuple(MAKERS) == VARIANTS
