"""A server of one run's own, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import app
from app.access.entries import make_key
from app.bulk.errors import BulkError, tell
from app.bulk.handlers.client import Client

PREFIX = "TORCHLANE_"
POLL_S = 0.1
STOP_S = 10.0
LEVELS = ("debug", "info", "warning", "error", "critical")
LISTENING, NOT_READY = "listening", "not_ready"  # events of its log
# Events that the errors of the rows tell, too.
OF_ROWS = ("model_failed", "handler_failed", "handler_process_ended")


class PrivateServer:
    """Serves a handler, and what it calls, on a port of the loopback interface.

    Args:
        name: of the handler.
        variables: the server's settings, by name without the prefix; others have their defaults.
        log_level: lines of its log from this level on go to standard error.
    """

    def __init__(self, name: str, variables: Mapping[str, str], log_level: str) -> None:
        self._name = name
        self._variables = variables
        self._shown = LEVELS[LEVELS.index(log_level) :]
        self._process: subprocess.Popen[bytes] | None = None
        self._key = ""
        self._url = ""
        self._problem = ""
        self._has_news = threading.Event()  # an address, a problem or the end

    def start(self) -> None:
        """Start it, and wait until the handler is ready.

        Raises:
            BulkError: if it cannot be; with the reason.
        """
        self._key, entry = make_key("score", ["predict"])
        variables = {
            **self._variables,
            "HOST": "127.0.0.1",
            "PORT": "0",
            "WORKERS": "1",
            "API_KEYS": entry,
            "REQUIRED_MODELS": self._name,
            "RELOAD_S": "0",
            "SHOW_MODEL_ERRORS": "true",  # they are for the user of this run
            "LOG_LEVEL": "info",
            "LOG_FORMAT": "json",
        }
        environment = {k: v for k, v in os.environ.items() if not k.upper().startswith(PREFIX)}
        environment |= {PREFIX + name: value for name, value in variables.items()}
        ours = str(Path(app.__file__).resolve().parents[1])
        before = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join([ours, *([before] if before else [])])
        # The command is ours. It is apart from Ctrl-C, which must not end it before its rows.
        self._process = subprocess.Popen(  # nosec B603
            [sys.executable, "-P", "-m", "app.bulk.handlers.launch", str(os.getpid())],
            env=environment,
            cwd="/",  # a `.env` file here is not for it, nor one that others may write
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        threading.Thread(target=self._read_log, args=(self._process,), daemon=True).start()
        while not self._is_ready():
            if self._problem or self._process.poll() is not None:
                raise BulkError(self._problem or "the server of the run ended: see its lines above")

    def client(self, timeout_s: float) -> Client:
        """A connection to it; each thread needs its own.

        Args:
            timeout_s: for one answer.
        """
        address = urlsplit(self._url)
        return Client(address.hostname or "", address.port or 0, self._key, timeout_s)

    def stop(self) -> None:
        """End it, with the processes of its handlers."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()  # the handlers' processes end with it
            process.wait()

    def _is_ready(self) -> bool:
        if not self._url:
            self._has_news.wait(POLL_S)
            return False
        self._has_news.clear()
        client = self.client(STOP_S)
        try:
            if client.is_ready():
                return True
        finally:
            client.close()
        self._has_news.wait(POLL_S)
        return False

    def _read_log(self, process: subprocess.Popen[bytes]) -> None:
        """Read until the server ends: it must never wait for its log."""
        for line in process.stderr or ():
            text = line.decode("utf-8", "replace").rstrip()
            try:
                fields: Any = json.loads(text)
                event, level = fields.get("event"), fields.get("level")
            except (ValueError, AttributeError):
                tell(text)  # of the interpreter
                continue
            if event == LISTENING:
                self._url = str(fields.get("url"))
                self._has_news.set()
            elif event == NOT_READY and not self._problem:
                self._problem = "; ".join(map(str, fields.get("reasons", [])))
                self._has_news.set()
            elif level in self._shown and event not in OF_ROWS:
                tell(text)
        self._has_news.set()
