"""The command line: exit codes, and one line for whatever can go wrong."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from models.definitions.loading import Definitions
from tests.unit.export.command_line import files, run
from tests.unit.export.definitions import Bracketed, definition


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tiny", "--out", "ftp://host/a"], "argument --out: ftp:// is not supported"),
        (["train", "tiny", "--out", "s3://b"], "argument --out: s3:// is not supported"),
        (["adopt", "hf://org/name"], "argument FILE: hf:// is not supported"),
        (["show", "s3://bucket/a/1"], "argument folder: s3:// is not supported"),
        (["unknown"], "unknown model 'unknown'; there are: close, liar, moody, nan, tiny, uns"),
        (["unknown"], "; other commands: torchlane train|adopt|tune|show|"),
        (["tiny", "--version", "0"], "--version must be 1 to 999999999, got 0"),
        (["tiny", "--variants", "fast,script"], "--variants fast: there are: script, trace"),
        (["tiny", "--variants", ","], "--variants '': there are: script, trace"),
        (["tiny", "--integer-share", "2"], "must be a share from 0 to 1, got '2'"),
        (["tiny", "--max-accuracy-drop", "x"], "must be 0 to 100 points, got 'x'"),
        (["tiny", "--max-accuracy-drop", "nan"], "must be 0 to 100 points, got 'nan'"),
        (["tiny", "--max-batch-size", "0"], "must be a whole number, at least 1, got '0'"),
        (["tiny", "--threads", "many"], "argument --threads: must be a whole number, at"),
        (["tiny", "--plan-precision", "int8", "--variants", "script"], "--plan-precision int8:"),
        (["tiny", "--checkpoint-key", "ema"], "--checkpoint-key needs --checkpoint FILE"),
        (["tiny", "--turbo"], "unrecognized arguments: --turbo (--help explains every option)"),
    ],
)
def test_wrong_usage(
    arguments: list[object], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in rejected(2, [*arguments, "--out", tmp_path], capsys, tmp_path)


@pytest.mark.parametrize(
    ("command", "damage", "message"),
    [
        ("show", "script.pt", "script.pt has 2 bytes, the manifest says "),
        ("tune", "manifest.json", "manifest.json has SHA-256 "),
    ],
)
def test_a_damaged_artifact(
    command: str, damage: str, message: str, old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (old / damage).write_bytes(b"{}")
    sentence = rejected(2, [command, old], capsys)
    assert f"{old} is not an intact artifact: {message}" in sentence
    assert not old.with_name("2").exists()
    shutil.rmtree(old)
    assert "manifest.json cannot be read" in rejected(2, [command, old], capsys)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("liar", "script: golden example 0: output 'y' differs by up to 0.001"),
        ("moody", "script: the model fails on x [4, 2]: ValueError: more than three"),
        ("unscriptable", "; build it with --variants trace, which needs no source that"),
    ],
)
def test_a_failed_export_writes_no_artifact(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, message: str
) -> None:
    arguments = [model, "--out", tmp_path / "out", "--variants", "script"]
    assert message in rejected(1, arguments, capsys, tmp_path)


def test_model_messages_are_not_parsed_as_markup(tmp_path: Path) -> None:
    catalog = {"bracketed": definition(Bracketed, train=None)}
    options = ("--out", tmp_path, "--variants", "trace", "--max-batch-size", "2")
    code, printed = run("bracketed", *options, catalog=catalog)
    assert code == 1
    assert "paths must be one of [/x, /y]" in printed
    assert files(tmp_path) == []


def test_a_broken_definition_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    catalog = Definitions({"broken": "models.definitions.no_such"})
    assert run("broken", "--out", tmp_path, catalog=catalog)[0] == 1
    message = capsys.readouterr().err
    assert "the catalog says that 'broken' is in models.definitions.no_such, which" in message
    assert message.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit) as excinfo:  # it affects no other command
        run("show", "--help", catalog=catalog)
    assert excinfo.value.code == 0
