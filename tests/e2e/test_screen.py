"""All that a start and a stop print at the terminal's format."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest

from tests.artifacts import write_artifact
from tests.e2e.server import running

READY = "Ready in N s: http://N:N"
# Of each line the beginning; the models in any order.
LINES = ("Warning: TORCHLANE_DEFAULT_MODEL", "broken N: not loaded: script.pt", "double N: script")


@pytest.mark.parametrize(
    ("workers", "last"),
    [("1", f"{READY} (double N)"), ("2", f"{READY} (double N; N workers)")],
    ids=["process", "workers"],
)
def test_a_person_sees_a_line_for_each_model_and_the_address(
    models: Path, log: Path, workers: str, last: str
) -> None:
    (write_artifact(models, "broken") / "script.pt").write_bytes(b"damaged")
    screen = {"workers": workers, "log_format": "console", "log_level": "info"}
    with running(models, log, **screen, default_model="doubel") as server:
        server.wait_for_log("Ready in")
        server.signal(signal.SIGINT)
        assert server.exit_code() == 0
        lines = [re.sub(r"\d+(\.\d+)*", "N", each) for each in server.log.splitlines()]
    assert len(lines) == 5, lines
    for line, start in zip(sorted(lines[:3]), LINES, strict=True):
        assert line.startswith(start)
    assert lines[3] == last
    assert lines[4].startswith("Stopping (SIGINT)")
