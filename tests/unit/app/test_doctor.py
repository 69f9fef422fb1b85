"""`torchlane doctor`."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from app.doctor import main
from tests.artifacts import write_artifact


@pytest.fixture(autouse=True)
def port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """A free port, which is set; no .env file of the checkout counts."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as bound:
        number: int = bound.getsockname()[1]
    monkeypatch.setenv("TORCHLANE_PORT", str(number))
    return number


def report(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(arguments)
    return code, capsys.readouterr().out


def test_a_server_that_would_start(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHLANE_CACHE_URL", "redis://user:secret@127.0.0.1")
    write_artifact(tmp_path / "models", "double")
    code, text = report(capsys, "--model-dir", str(tmp_path / "models"))
    assert code == 0, text
    assert "\n! " not in text
    for line in (
        "  torchlane ",
        "  packages: torch ",
        "  C++ compiler: ",
        f"  setting: TORCHLANE_PORT='{port}'",
        "  setting: TORCHLANE_CACHE_URL=(secret)",
        f"  port: 127.0.0.1:{port} is free",
        f"  repository: {tmp_path / 'models'}",
        "  double/1: intact, ",
    ):
        assert f"\n{line}" in f"\n{text}", line
    assert "redis://" not in text


def test_each_problem_is_marked(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, port: int
) -> None:
    folder = write_artifact(tmp_path / "models", "double")
    with (folder / "manifest.json").open("a") as file:
        file.write(" ")
    with socket.create_server(("127.0.0.1", port)):  # which never answers
        code, text = report(capsys, "--model-dir", str(tmp_path / "models"))
    assert code == 1
    problems = [line for line in text.splitlines() if line.startswith("! ")]
    assert problems[0].startswith(f"! port: 127.0.0.1:{port} cannot be used (Address already in")
    assert problems[1].startswith("! double/1: ")
    assert text.endswith("\n2 problems, marked with !\n")


def test_wrong_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHLANE_PRT", "1")
    code, text = report(capsys)
    assert code == 1
    assert "! settings: TORCHLANE_PRT is not a setting; did you mean TORCHLANE_PORT?" in text
