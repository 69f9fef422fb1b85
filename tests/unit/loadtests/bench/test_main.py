"""The command: its options, and what it says when there is nothing to measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.__main__ import main, parser
from loadtests.bench.options import Options
from loadtests.bench.own_models import newest_artifact
from loadtests.bench.workloads import QUICK, QUICK_SERVERS
from models.manifest import MANIFEST_FILE
from tests.artifacts import write_artifact


def options(*arguments: str) -> Options:
    return Options.of(parser().parse_args(["bench", *arguments]))


def test_quick_means_fewer_and_shorter_rounds() -> None:
    asked = options("--quick")
    assert (asked.rounds, asked.seconds) == (3, 1)
    assert (asked.workloads, asked.servers) == (QUICK, QUICK_SERVERS)
    assert options("--quick", "--rounds", "2", "--servers", "mosec").servers == ("mosec",)


def test_each_torchlane_build_is_measured_once() -> None:
    assert "torchlane_python" in options().servers
    assert "torchlane_python" not in options("--pure").servers
    assert "torchlane_before" not in options().servers
    earlier = options("--before", "/earlier", "--servers", "mosec", "torchlane")
    assert earlier.servers == ("mosec", "torchlane_before")


@pytest.mark.parametrize(
    "wrong",
    ["--rounds=0", "--seconds=0", "--seconds=1.5", "--workloads=all", "--servers=nobody"],
)
def test_wrong_options_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        main(["bench", wrong])
    assert raised.value.code == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err


def test_missing_model_error_explains_the_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "--artifacts", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "run `make export MODEL=digits`" in capsys.readouterr().err


def test_a_damaged_manifest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_artifact(tmp_path, "digits")
    (folder / MANIFEST_FILE).write_text("{}")
    assert main(["bench", "--artifacts", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert str(folder / MANIFEST_FILE) in capsys.readouterr().err


def test_an_unknown_peer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench-peers", "nobody"]) == 1
    assert "there is no peer 'nobody'" in capsys.readouterr().err


def test_newest_version_is_chosen_numerically(tmp_path: Path) -> None:
    for version in (9, 10):
        write_artifact(tmp_path, "digits", version)
    (tmp_path / "digits" / ".11.tmp").mkdir()
    assert newest_artifact(tmp_path).name == "10"
