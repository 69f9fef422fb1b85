"""docs/tutorial.md from the first block to the last, in a folder of its own."""

from __future__ import annotations

import itertools
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.docs.blocks import ROOT, blocks
from tests.e2e.forking import write_command
from tests.e2e.server import Server, free_port, wait_ready
from tests.unit.export.command_line import run

QUICK = ("--variants", "script", "--threads", "1", "--max-batch-size", "8")
TORCH = re.compile("^python bikes.py|^torchlane adopt", re.MULTILINE)
NEW_VERSION_S = 20


class Reader:
    """Does what the tutorial says.

    Args:
        folder: to work in.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._server: Server | None = None
        self._environment = {k: v for k, v in os.environ.items() if not k.startswith("TORCHLANE_")}
        self._environment |= {
            **write_command(folder),
            "PYTHONPATH": str(ROOT),
            "TORCHLANE_PORT": str(self._port),
            "TORCHLANE_DEVICES": "cpu",
            "TORCHLANE_WORKERS": "1",
            "TORCHLANE_RELOAD_S": "0.2",
        }

    def write(self, text: str) -> None:
        """Write a file whose name is in its first line."""
        name = text.split("\n", 1)[0].removeprefix("# ")
        (self._folder / name).write_text(self._here(text))

    def execute(self, script: str) -> str:
        """Run a block; return what it prints."""
        if script.startswith("torchlane serve"):
            self.stop()
            self._serve(script.replace("0.0.0.0", "127.0.0.1"))
            return ""
        if TORCH.search(script):
            for line in script.splitlines():
                self._with_torch(shlex.split(line))
            return ""
        return self._shell(script)

    def repeat(self, call: str, pattern: str) -> str:
        """Repeat a call until its answer has the pattern; return the answer."""
        deadline = time.monotonic() + NEW_VERSION_S
        while not re.search(pattern, answer := self._shell(call)):
            assert time.monotonic() < deadline, answer
            time.sleep(0.1)
        return answer

    def stop(self) -> None:
        """Stop the server, if one runs, as Ctrl-C does."""
        if self._server is not None:
            try:
                self._server.signal()
                assert self._server.exit_code() == 0
            finally:
                self._server.process.kill()  # does nothing if it has ended
        self._server = None

    def _with_torch(self, words: list[str]) -> None:
        """Run a command in this process, which has imported torch, and without slow variants."""
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self._folder)
            if words[0] == "python":
                patch.setattr(sys, "argv", words[1:])
                runpy.run_path(words[1])
            else:
                code, printed = run(*words[1:], *QUICK)
                assert code == 0, printed

    def _serve(self, command: str) -> None:
        log = self._folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                shlex.split(command),
                cwd=self._folder,
                env=self._environment,
                stdout=output,
                stderr=output,
            )
        self._server = Server(process, self._port, log)
        wait_ready(self._server)

    def _shell(self, script: str) -> str:
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", self._here(script)],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
        return done.stdout

    def _here(self, text: str) -> str:
        return text.replace("127.0.0.1:8000", f"127.0.0.1:{self._port}")


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


def form(value: Any) -> Any:
    """An answer without its id and the values of its floats."""
    if isinstance(value, dict):
        return {key: form(each) for key, each in value.items() if key != "request_id"}
    if isinstance(value, list):
        return [form(each) for each in value]
    return float if isinstance(value, float) else value


@pytest.mark.slow
def test_the_tutorial_works(reader: Reader) -> None:
    document = blocks("docs/tutorial.md")
    for (language, text), (next_language, answer) in itertools.pairwise([*document, ("", "")]):
        if language in ("python", "toml"):
            reader.write(text)
        elif language == "sh" and next_language != "json":
            reader.execute(text)
        elif language == "sh":
            version = re.search(r'"version": \d+', answer)
            pattern = version[0].replace(" ", "") if version else ""
            assert form(json.loads(reader.repeat(text, pattern))) == form(json.loads(answer))
