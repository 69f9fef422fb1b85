"""The program of docs/embedding.md under each ASGI server that the document names."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.artifacts import write_artifact
from tests.docs.blocks import blocks
from tests.e2e.server import PLAIN, Server, free_port, post_on_the_wire, wait_ready

PROGRAM, SHELL = (text for _, text in blocks("docs/embedding.md")[:2])
COMMANDS = [shlex.split(line, comments=True) for line in SHELL.splitlines()]
# uvicorn raises the signal again once it has shut down; gunicorn and hypercorn exit with 0.
CODES = {"uvicorn": -signal.SIGTERM, "gunicorn": 0, "hypercorn": 0}
ACCEPTED = "torchlane_cache_lookups_total"  # every accepted item is looked up once


@pytest.mark.parametrize("command", COMMANDS, ids=[each[0] for each in COMMANDS])
def test_an_accepted_request_is_answered_after_sigterm(command: list[str], tmp_path: Path) -> None:
    write_artifact(tmp_path / "artifacts", "double")
    (tmp_path / "shop.py").write_text(PROGRAM)
    name, port, log = command[0], free_port(), tmp_path / "log"
    bind = [f"--port={port}"] if name == "uvicorn" else [f"--bind=127.0.0.1:{port}"]
    settings = {"TORCHLANE_DEVICES": "cpu*1", "TORCHLANE_BATCH_WAIT_MS": "1000"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [Path(sys.executable).with_name(name), *command[1:], *bind],
            cwd=tmp_path,
            env=os.environ | settings,
            stdout=out,
            stderr=out,
        )
    try:
        server = Server(process, port, log)
        wait_ready(server)
        assert httpx.get(f"{server.url}/hours", verify=PLAIN).json() == {"monday": "9 to 17"}
        with post_on_the_wire(port, b'{"input": [1, 2]}') as connection:
            server.wait_for_metric(ACCEPTED, lambda items: items == 1)
            process.terminate()
            assert b"[2.0,4.0]" in connection.makefile("rb").read(), server.log
        assert server.exit_code() == CODES[name], server.log
    finally:
        process.kill()
        process.wait()
