"""The capacity search against real servers: Torchlane itself, and one whose capacity is known."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.__main__ import main
from tests.artifacts import write_artifact
from tests.e2e.server import Server, running

pytestmark = pytest.mark.soak  # measures

# generous: other tests may use the machine at the same time
QUICK = ["--budget-s", "4", "--slo-ms", "250", "--fail-ratio", "0.01"]
FILES = {"capacity.json", "capacity.html"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("capacity")
    write_artifact(folder / "models", "double")
    with running(folder / "models", folder / "log") as started:
        yield started


def test_a_short_search_finds_capacity_and_writes_files(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["find-capacity", "--url", server.url, *QUICK, "--out", str(tmp_path)]
    code = main([*command, "--min-capacity", "1"])
    said = capsys.readouterr().out
    assert {file.name for file in tmp_path.iterdir()} == FILES
    found = json.loads((tmp_path / "capacity.json").read_text())
    assert code == (0 if found["confirmed"] else 1)  # on a busy machine it may not be
    assert "of the pairs can be told apart" in said
    assert found["conditions"]["address"] == server.url.removeprefix("http://")
    assert found["capacity_per_s"] > 10
    assert found["headline"] in said
    assert found["conditions"]["model"] == "double"
    assert found["conditions"]["command"].startswith("torchlane load find-capacity --url")
    assert found["seconds"] < 60
    assert all(trial["wrong"] == 0 for trial in found["trials"])
    assert found["headline"].split(" (")[0] in (tmp_path / "capacity.html").read_text()


def test_a_run_writes_its_trial(server: Server, tmp_path: Path) -> None:
    run = ["run", "--url", server.url, "--rate", "30", "--seconds", "2", "--workload", "mixed"]
    run += ["--out", str(tmp_path)]
    assert main([*run, "--fail-p99-ms", "1500", "--fail-ratio", "0.5"]) == 0
    trial = json.loads((tmp_path / "run.json").read_text())["trial"]
    assert trial["requests"] > 20
    assert trial["wrong"] == 0
