"""Seconds of `python -m tests.chaos.mishaps`, which runs for half an hour by default."""

from __future__ import annotations

import pytest

from tests.chaos.mishaps import main


@pytest.mark.soak
def test_what_happens_around_a_server_changes_no_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = main(["--minutes", "0.1", "--seed", "20261125"])
    told = capsys.readouterr().out
    assert code == 0, told
    assert "a served version is overwritten" in told
    assert "a worker is killed" in told
