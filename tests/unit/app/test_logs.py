"""The format of the log, in processes of their own: it is set once for a whole process."""

from __future__ import annotations

import json
import subprocess
import sys

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
