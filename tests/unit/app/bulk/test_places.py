"""Bulk answers in the pictures' pixels: equal inputs may come from pictures of different sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from app.bulk import command
from tests.integration.test_places import SMALL, WIDE, how, picture, wanted, write
from tests.unit.app.bulk.conftest import rows


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("form", ["parquet", "jsonl"])
def test_each_row_has_the_pixels_of_its_own_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, form: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.logs.configure_logs", lambda level, form: None)
    write(tmp_path / "models", "pad", how(fill=0))
    Path("in").mkdir()
    cases = (WIDE, SMALL, WIDE)
    for index, (size, box) in enumerate(cases):
        Path(f"in/{index}.png").write_bytes(picture(*size, box))
    Path("in/9.png").write_bytes(b"no picture")
    more = ["--out", "out", "--model-dir", "models", "--devices", "cpu", "--format", form]
    assert command.main(["pad", "in", "--workers", str(workers), *more]) == 0
    *good, bad = rows()
    assert [bad["boxes"], bad["image"]] == [None, None]
    assert "not a PNG, JPEG, WebP or GIF file" in str(bad["error"])
    for row, case in zip(good, cases, strict=True):
        answer: dict[str, Any] = wanted(case)
        row["scores"] = row["scores_output"]
        assert {name: row[name] for name in answer["outputs"]} == answer["outputs"]
        assert row["image"] == answer["image"]


def test_masks_that_would_fill_the_memory_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.logs.configure_logs", lambda level, form: None)
    monkeypatch.setattr("app.bulk.answers.MAX_MAPPED_BYTES", 1000)
    write(tmp_path / "models", "pad", how(fill=0))
    Path("in").mkdir()
    size, box = WIDE
    for index in range(20):
        Path(f"in/{index}.png").write_bytes(picture(*size, box))
    more = ["--out", "out", "--model-dir", "models", "--devices", "cpu", "--workers", "0"]
    assert command.main(["pad", "in", *more]) == 1
    assert "masks in the size of the pictures take more than 1,000 bytes" in capsys.readouterr().err
