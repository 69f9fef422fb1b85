"""`make bench-loading` as a user would run it, only shorter."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtests import loading
from loadtests.__main__ import main


def test_the_effect_of_loading_on_requests_is_measured(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("LEAD_S", "BEFORE_S", "AFTER_S"):
        monkeypatch.setattr(loading, name, 0.5)
    pairwise = repository / "pairwise" / "1"
    short = ["--rate", "20", "--seconds", "6", "--slow", str(pairwise)]
    main(["loading", *short, "--artifacts", str(repository)])
    told = capsys.readouterr()
    assert "ready in " in told.out, told.err
    assert "; 0 requests failed" in told.out
