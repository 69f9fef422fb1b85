"""Spans of texts: equal tokens may come from texts that differ."""

from __future__ import annotations

from pathlib import Path

import pytest

from app.bulk import command
from tests.texts import TinyTagger, write_text
from tests.unit.app.bulk.conftest import rows


def test_equal_tokens_of_different_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.logs.configure_logs", lambda level, form: None)
    write_text(
        *(tmp_path / "models", "tags"),
        module=TinyTagger(),
        task="classify-tokens",
        labels=("O", "B-X", "I-X"),
        scores="softmax",
    )
    texts = ["a cat in london", "A CAT IN  LONDON", "a cat in london"]
    Path("in.csv").write_text("text\n" + "\n".join(texts) + "\n")
    more = ["--out", "out", "--model-dir", "models", "--devices", "cpu", "--workers", "0"]
    assert command.main(["tags", "in.csv", *more]) == 0
    found = rows()
    assert found[0]["spans"]
    assert found[0]["spans"] == found[2]["spans"]
    for row, text in zip(found, texts, strict=True):
        for span in row["spans"]:
            assert span["text"] == text[span["start"] : span["end"]]
