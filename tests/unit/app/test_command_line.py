"""The command line of `python -m app`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fastapi import FastAPI

from app.__main__ import main
from app.processes.worker import Worker
from app.settings import PREFIX, Settings


class Seen(ValueError):
    """Raised instead of serving; holds what would have been served."""


def create(settings: Settings, worker: Worker | None) -> FastAPI:
    assert worker is None
    raise Seen(f"{settings.workers} worker")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder without a .env file, no variable of ours, and the test's own logs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.__main__.configure_logs", lambda level, form: None)
    for name in list(os.environ):
        if name.upper().startswith(PREFIX):
            monkeypatch.delenv(name)


def test_the_flag_wins_over_the_variable(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHLANE_WORKERS", "3")
    assert main(create, ["--workers", "1"]) == 2
    assert "torchlane: 1 worker" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("value", "right"), [("0", "greater than or equal to 1"), ("many", "valid integer")]
)
def test_a_wrong_number_is_refused_by_the_flags_name(
    capsys: pytest.CaptureFixture[str], value: str, right: str
) -> None:
    assert main(create, ["--workers", value]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"torchlane: --workers {value!r}: ")
    assert right in error


def test_help_tells_of_the_flag_and_where_the_rest_stands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(create, ["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "--workers N" in text
    assert "docs/settings.md" in text
    assert "--worker " not in text


def test_one_process_keeps_its_values_in_memory_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert main(create, []) == 2
    assert "PROMETHEUS_MULTIPROC_DIR" not in os.environ


def test_several_workers_need_a_folder_that_can_be_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCHLANE_PORT", "0")
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / "file" / "folder"))
    assert main(create, ["--workers", "2"]) == 2
    error = capsys.readouterr().err
    assert "torchlane: several workers need a folder: " in error
    assert "PROMETHEUS_MULTIPROC_DIR" in error


def test_a_folder_whose_name_is_too_long_for_a_socket_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / ("long" * 20)
    folder.mkdir()
    monkeypatch.setenv("TORCHLANE_PORT", "0")
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    assert main(create, ["--workers", "2"]) == 2
    error = capsys.readouterr().err
    assert "is longer than 80 bytes" in error
    assert "TMPDIR" in error
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("API_KEYS", "tl_a-key-in-the-wrong-place", "TORCHLANE_API_KEYS: entry 1: after the name"),
        ("API_KEYS_FILE", "keys", "TORCHLANE_API_KEYS_FILE=keys: line 2: after the scopes"),
        ("RATE_LIMIT", "many", "TORCHLANE_RATE_LIMIT='many': a limit is a number of items"),
    ],
)
def test_keys_that_are_wrong_refuse_the_start_and_are_not_repeated(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    value: str,
    told: str,
) -> None:
    Path("keys").write_text("# who\nmobile predict tl_a-key-in-the-wrong-place\n")
    monkeypatch.setenv(PREFIX + name, value)
    assert main(arguments=[]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"torchlane: {told}")
    assert "tl_" not in error
