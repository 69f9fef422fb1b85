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


LEVELS = """
import logging, sys
import structlog
from app.logs import configure_logs

configure_logs("warning", "json")
for logger in (structlog.get_logger("ours"), logging.getLogger("theirs")):
    logger.info("not shown")
    logger.warning("shown")
    try:
        raise ValueError("reason")
    except ValueError:
        logger.exception("failed")
sys.stderr.close()
structlog.get_logger("ours").error("nobody reads")
"""


def test_both_kinds_of_loggers_write_the_same_fields() -> None:
    done = subprocess.run([sys.executable, "-c", LEVELS], check=True, capture_output=True)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(line["logger"], line["event"], line["level"]) for line in lines] == [
        (name, event, level)
        for name in ("ours", "theirs")
        for event, level in (("shown", "warning"), ("failed", "error"))
    ]
    assert all(line["timestamp"].endswith("Z") for line in lines)
    assert ["ValueError: reason" in line.get("exception", "") for line in lines] == [
        False,
        True,
    ] * 2


HOSTILE = """
import logging
import structlog
from app.logs import configure_logs

configure_logs("debug", FORM)
name = "a\\x1b[2J\\x9b\\nlevel=error\\u202e\\r"
structlog.get_logger("ours").info("request", model=name)
logging.getLogger("PIL.PngImagePlugin").debug("STREAM b'IHDR' 16 13")
"""


@pytest.mark.parametrize("form", ["console", "json"])
def test_a_clients_text_stays_in_its_line(form: str) -> None:
    program = HOSTILE.replace("FORM", repr(form))
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)
    (line,) = done.stderr.removesuffix(b"\n").split(b"\n")
    assert b"request" in line
    assert line.decode("ascii").isprintable()
