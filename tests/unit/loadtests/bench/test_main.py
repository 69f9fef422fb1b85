"""The command: its options, and what it says when there is nothing to measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.__main__ import main, newest_artifact, parse
from loadtests.bench.generator import LoadPlan
from models.manifest import MANIFEST_FILE
from tests.artifacts import write_artifact


def test_defaults_are_those_that_are_documented() -> None:
    options = parse([])
    assert (options.rounds, options.plan) == (3, LoadPlan(32, 1.0, 5.0))
    assert (options.artifacts, options.out) == (Path("artifacts"), Path("reports"))


def test_quick_is_one_short_round() -> None:
    options = parse(["--quick", "--connections", "8"])
    assert (options.rounds, options.plan) == (1, LoadPlan(8, 1.0, 2.0))


@pytest.mark.parametrize("wrong", ["--rounds=0", "--seconds=0", "--connections=-1", "--seconds=x"])
def test_wrong_options_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse([wrong])
    assert raised.value.code == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err


def test_without_a_model_it_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--artifacts", str(tmp_path)]) == 1
    assert "run `make export`" in capsys.readouterr().err


def test_a_damaged_manifest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_artifact(tmp_path, "digits")
    (folder / MANIFEST_FILE).write_text("{}")
    assert main(["--artifacts", str(tmp_path)]) == 1
    assert str(folder / MANIFEST_FILE) in capsys.readouterr().err


def test_the_newest_version_is_taken_by_number(tmp_path: Path) -> None:
    for version in (9, 10):
        write_artifact(tmp_path, "digits", version)
    (tmp_path / "digits" / ".11.tmp").mkdir()
    folder, manifest = newest_artifact(tmp_path)
    assert (folder.name, manifest.version) == ("10", 10)
