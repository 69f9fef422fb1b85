"""Programs that are started without some of their standard streams."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, socket, sys
from models.system.streams import open_closed_streams
open_closed_streams()
with socket.socket() as opened:
    assert opened.fileno() > 2
print("out")
print("err", file=sys.stderr)
sys.exit(3 if sys.stdin is None or not sys.stdin.read() else 4)
"""


@pytest.mark.parametrize(
    "closed", ["", "<&-", ">&-", "2>&-", "<&- >&-", ">&- 2>&-", "<&- >&- 2>&-"]
)
def test_program_runs_without_streams(closed: str) -> None:
    done = subprocess.run(
        ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, PROGRAM],
        input="",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 3
    assert done.stdout == ("" if " >&-" in f" {closed}" else "out\n")
    assert done.stderr == ("" if "2>&-" in closed else "err\n")
