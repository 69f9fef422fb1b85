"""A repository with tiny models, and the command, run in the test's process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from app.bulk import command
from app.bulk.writing import ERRORS_FILE
from tests.artifacts import PICTURE, SCORES, SHIFT, Small, small_batch, write_artifact
from tests.kinds import write_ages, write_cities, write_pictures
from tests.text_models import LABELS, write_text_model

Bulk = Callable[..., int]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_artifact(folder, "double")  # x [2] -> 2 x; above 100 it fails, below -100 it is NaN
    write_pictures(folder)
    write_ages(folder)
    write_cities(folder)
    write_text_model(folder, "topics", "classify", len(LABELS), scores="softmax", labels=LABELS)
    write_text_model(folder, "rank", "rerank", 1)
    batch = small_batch(1)
    write_artifact(
        *(folder, "small", 1, Small()),
        inputs=(PICTURE, SHIFT),
        outputs=(SCORES,),
        golden=[{name: array[0] for name, array in batch.items()}],
    )
    return folder


@pytest.fixture
def bulk(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bulk:
    """Run the command in an empty folder; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    # It would set up the logs of this whole process, and so of all tests to come.
    monkeypatch.setattr("app.logs.configure_logs", lambda level, form: None)

    def run(*arguments: object, out: str = "out", devices: str = "cpu") -> int:
        more = ["--out", out, "--model-dir", str(repository), "--devices", devices]
        return command.main([*map(str, arguments), *more])

    return run


def rows(out: str | Path = "out") -> list[dict[str, Any]]:
    """All rows of a run, in order."""
    parts = sorted(Path(out).glob("part-*"))
    return [row for part in parts for row in _read(part)]


def _read(part: Path) -> Sequence[dict[str, Any]]:
    if part.suffix == ".jsonl":
        return [json.loads(line) for line in part.read_text().splitlines()]
    found: list[dict[str, Any]] = pq.ParquetFile(part).read().to_pylist()
    return found


def errors(out: str | Path = "out") -> list[dict[str, Any]]:
    """The rows of errors.parquet."""
    return list(_read(Path(out) / ERRORS_FILE))


def manifest(out: str | Path = "out") -> dict[str, Any]:
    """The manifest of a run."""
    found: dict[str, Any] = json.loads((Path(out) / "manifest.json").read_text())
    return found


def digest(out: str | Path = "out") -> dict[str, str]:
    """SHA-256 of every file of results."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(out).iterdir())
        if path.name != "manifest.json"
    }
