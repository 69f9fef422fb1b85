"""The command line: exit codes, and one line for whatever can go wrong."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console

from export.cli import main
from models.definitions.loading import Definitions
from tests.unit.export.command_line import QUICK, complete, files, run
from tests.unit.export.definitions import CATALOG, Bracketed, definition


class Convolution(torch.nn.Module):
    """x [n, 2] -> y [n, 2], by way of a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv1d(1, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv(x[:, None])[:, 0]
        return y


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of tiny, version 1: do not change."""
    out = tmp_path_factory.mktemp("exported")
    assert run("tiny", "--out", out, *QUICK)[0] == 0
    return out / "tiny/1"


def rejected(
    code: int, arguments: list[object], capsys: pytest.CaptureFixture[str], out: Path | None = None
) -> str:
    """Checks the exit code, the single line of reason, and that `out` is empty."""
    assert run(*arguments)[0] == code
    message = capsys.readouterr().err
    assert message.startswith("torchlane: ")
    assert message.count("\n") == 1
    if out is not None:
        assert list(out.rglob("*")) == []
    return message


class TestWrongUsage:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["tiny", "--out", "s3://bucket/a"], "argument --out: s3:// is not supported"),
            (["train", "tiny", "--out", "s3://b"], "argument --out: s3:// is not supported"),
            (["adopt", "hf://org/name"], "argument FILE: hf:// is not supported"),
            (["show", "s3://bucket/a/1"], "argument folder: s3:// is not supported"),
            (
                ["unknown"],
                (
                    "unknown model 'unknown'; there are: close, liar, moody, nan, tiny, "
                    "unscriptable; other commands: torchlane train|adopt|tune|show|"
                ),
            ),
            (["tiny", "--version", "0"], "--version must be 1 to 999999999, got 0"),
            (["tiny", "--version", "-3"], "--version must be 1 to 999999999, got -3"),
            (["tiny", "--version", "1000000000"], "--version must be 1 to 999999999"),
            (["tiny", "--variants", "fast,script"], "--variants fast: there are: script, trace"),
            (["tiny", "--variants", ","], "--variants '': there are: script, trace"),
            (["tiny", "--integer-share", "2"], "must be a share from 0 to 1, got '2'"),
            (["tiny", "--max-accuracy-drop", "x"], "must be 0 to 100 points, got 'x'"),
            (["tiny", "--max-accuracy-drop", "101"], "must be 0 to 100 points, got '101'"),
            (["tiny", "--max-accuracy-drop", "nan"], "must be 0 to 100 points, got 'nan'"),
            (["tiny", "--max-batch-size", "0"], "must be a whole number, at least 1, got '0'"),
            (["tiny", "--max-batch-size", "2.5"], "a whole number, at least 1, got '2.5'"),
            (["tiny", "--threads", "many"], "argument --threads: must be a whole number, at"),
            (
                ["tiny", "--plan-precision", "int8", "--variants", "script"],
                "--plan-precision int8: none of script computes in it",
            ),
            (["tiny", "--turbo"], "unrecognized arguments: --turbo (--help explains every option)"),
        ],
    )
    def test_of_an_export(
        self,
        arguments: list[object],
        message: str,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        told = rejected(2, [*arguments, "--out", tmp_path], capsys, tmp_path)
        assert message in told

    def test_of_another_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        for command in ("adopt", "show", "tune"):
            rejected(2, [command], capsys)

    def test_a_version_that_exists(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run("tiny", "--out", tmp_path, *QUICK)
        before = (tmp_path / "tiny/1/manifest.json").read_bytes()
        message = rejected(2, ["tiny", "--out", tmp_path, "--version", 1], capsys)
        assert "omit --version to write version 2" in message
        assert files(tmp_path) == complete("tiny/1")
        assert (tmp_path / "tiny/1/manifest.json").read_bytes() == before

    @pytest.mark.parametrize("out", ["file", "file/below"])
    def test_a_folder_that_cannot_be_written(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str
    ) -> None:
        (tmp_path / "file").write_text("not a folder")
        message = rejected(2, ["tiny", "--out", tmp_path / out], capsys)
        assert f"cannot write to {tmp_path / out}/tiny: Not a directory" in message
        assert files(tmp_path) == ["file"]

    def test_a_key_without_a_checkpoint(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = ["tiny", "--out", tmp_path, "--checkpoint-key", "ema"]
        assert "--checkpoint-key needs --checkpoint FILE" in rejected(2, options, capsys, tmp_path)


class TestDamaged:
    @pytest.mark.parametrize("command", ["show", "tune"])
    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ("script.pt", "script.pt has 2 bytes, the manifest says "),
            ("manifest.json", "manifest.json has SHA-256 "),
            (None, "manifest.json cannot be read: No such file or directory"),
        ],
    )
    def test_folder_that_is_not_an_intact_artifact(
        self,
        command: str,
        damage: str | None,
        message: str,
        exported: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        folder = tmp_path / "tiny/1"
        if damage is not None:
            shutil.copytree(exported, folder)
            (folder / damage).write_bytes(b"{}")
        told = rejected(2, [command, folder], capsys)
        assert f"{folder} is not an intact artifact: {message}" in told
        assert not (tmp_path / "tiny/2").exists()


class TestFailed:
    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("liar", "script: golden example 0: output 'y' differs by up to 0.001"),
            ("moody", "script: the model fails on x [4, 2]: ValueError: more than three"),
            ("nan", "golden example 0: the eager model's output 'y' is not finite; nothing can"),
            (
                "unscriptable",
                "no variant of 'unscriptable' could be built: script: torch.jit.script",
            ),
            ("unscriptable", "; build it with --variants trace, which needs no source that"),
        ],
    )
    def test_failed_parity_writes_no_artifact(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, message: str
    ) -> None:
        arguments = [model, "--out", tmp_path / "out", "--variants", "script"]
        assert message in rejected(1, arguments, capsys, tmp_path)

    def test_empty_calibration_data(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        catalog = {"tiny": definition(Convolution, train=None, calibration=list)}
        arguments = ["tiny", "--out", str(tmp_path), "--variants", "script,int8"]
        assert main(arguments, catalog, Console(file=io.StringIO())) == 1
        message = "torchlane: the calibration data of 'tiny' is empty: let `calibration` of its"
        assert capsys.readouterr().err.startswith(message)
        assert list(tmp_path.rglob("*")) == []

    def test_earlier_versions_are_kept(self, tmp_path: Path) -> None:
        arguments = ["tiny", "--out", tmp_path, *QUICK]
        assert run(*arguments)[0] == 0
        assert run(*arguments, catalog={"tiny": CATALOG["liar"]})[0] == 1
        assert files(tmp_path) == complete("tiny/1")
        assert [path.name for path in (tmp_path / "tiny").iterdir()] == ["1"]


def test_model_messages_are_not_parsed_as_markup(tmp_path: Path) -> None:
    catalog = {"bracketed": definition(Bracketed, train=None)}
    code, printed = run(
        *("bracketed", "--out", tmp_path, "--variants", "trace", "--max-batch-size", "2"),
        catalog=catalog,
    )
    assert code == 1
    assert "paths must be one of [/x, /y]" in printed
    assert files(tmp_path) == []


class TestBrokenDefinition:
    BROKEN = Definitions({"broken": "models.definitions.no_such", "digits": "models.definitions"})

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ("broken", "the catalog says that 'broken' is in models.definitions.no_such, which"),
            ("digits", "models/definitions/__init__.py has no DEFINITION; it needs DEFINITION ="),
        ],
    )
    def test_is_reported_in_one_line(
        self, model: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(model, "--out", tmp_path, catalog=self.BROKEN)[0] == 1
        told = capsys.readouterr().err
        assert message in told
        assert told.count("\n") == 1
        assert list(tmp_path.rglob("*")) == []

    @pytest.mark.parametrize("arguments", [("--help",), ("keygen", "--help"), ("show", "--help")])
    def test_does_not_affect_other_commands(self, arguments: tuple[str, ...]) -> None:
        with pytest.raises(SystemExit) as excinfo:
            run(*arguments, catalog=self.BROKEN)
        assert excinfo.value.code == 0
