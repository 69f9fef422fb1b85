"""The command: its options, and what it says when there is nothing to measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests.bench.__main__ import main
from loadtests.bench.environments import COMPILED
from loadtests.bench.options import Options, Setup, parse
from loadtests.bench.own_models import newest_artifact
from loadtests.bench.workloads import NAMES, QUICK, QUICK_SERVERS, SERVERS
from models.manifest import MANIFEST_FILE
from tests.artifacts import write_artifact


def options(*arguments: str) -> Options:
    asked = parse(arguments)
    assert isinstance(asked, Options)
    return asked


def test_defaults_are_those_that_are_documented() -> None:
    asked = options()
    assert (asked.rounds, asked.seconds) == (3, 4)
    assert (asked.workloads, asked.servers) == (NAMES, SERVERS)
    assert (asked.artifacts, asked.out) == (Path("artifacts"), Path("reports"))
    assert (asked.package, options("--pure").package) == (COMPILED, None)


def test_quick_is_one_short_round_of_less() -> None:
    asked = options("--quick")
    assert (asked.rounds, asked.seconds) == (1, 2)
    assert (asked.workloads, asked.servers) == (QUICK, QUICK_SERVERS)
    assert options("--quick", "--rounds", "2", "--servers", "mosec").servers == ("mosec",)


def test_what_is_asked_for_is_measured() -> None:
    asked = options("--workloads", "zipf, json-32", "--servers", "torchlane,bare_asgi")
    assert asked.workloads == ("zipf", "json-32")
    assert asked.servers == ("bare_asgi",)  # ours is always there


def test_environments_are_made_by_a_command_of_their_own() -> None:
    assert parse(["setup"]) == Setup(())
    assert parse(["setup", "mosec"]) == Setup(("mosec",))


@pytest.mark.parametrize(
    "wrong",
    ["--rounds=0", "--seconds=0", "--seconds=1.5", "--workloads=zipf,all", "--servers=,"],
)
def test_wrong_options_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as raised:
        parse([wrong])
    assert raised.value.code == 2
    assert wrong.partition("=")[0] in capsys.readouterr().err


def test_without_a_model_it_says_how_to_get_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--artifacts", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert "run `make export`" in capsys.readouterr().err


def test_a_damaged_manifest_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_artifact(tmp_path, "digits")
    (folder / MANIFEST_FILE).write_text("{}")
    assert main(["--artifacts", str(tmp_path), "--out", str(tmp_path)]) == 1
    assert str(folder / MANIFEST_FILE) in capsys.readouterr().err


def test_an_unknown_peer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["setup", "nobody"]) == 1
    assert "there is no peer 'nobody'" in capsys.readouterr().err


def test_the_newest_version_is_taken_by_number(tmp_path: Path) -> None:
    for version in (9, 10):
        write_artifact(tmp_path, "digits", version)
    (tmp_path / "digits" / ".11.tmp").mkdir()
    assert newest_artifact(tmp_path).name == "10"
