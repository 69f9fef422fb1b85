"""The format of the log, in processes of their own: it is set once for a whole process."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from app.logs import shows_colors

PROGRAM = """
import logging, threading
import structlog
from app.logs import configure_logs, label_logs

configure_logs("info", "json")
label_logs(worker=3)

def write():
    structlog.get_logger("ours").info("event")
    logging.getLogger("theirs").info("event")

write()
thread = threading.Thread(target=write)
thread.start()
thread.join()
structlog.get_logger("ours").info("event", worker=1)
"""


def test_every_thread_writes_the_labels_of_its_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60
    )
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [line["worker"] for line in lines] == [3, 3, 3, 3, 1]


@pytest.mark.parametrize(
    ("is_terminal", "environ", "colors"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"NO_COLOR": ""}, True),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_terminal_and_variables_decide_about_colors(
    is_terminal: bool, environ: dict[str, str], colors: bool
) -> None:
    assert shows_colors(is_terminal, environ) == colors
