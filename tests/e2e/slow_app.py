"""`python -m tests.e2e.slow_app`: the application with a model that takes SLOW_S seconds a batch.

With SLOW_UNTIL a batch takes until the file of that name is there; one with a -1 in it takes the
interpreter's lock with it and never comes back. With LOAD_UNTIL a model named `slow` is loaded once
the file of that name is there. All else is real: settings,
signals, sockets, engine, threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from pathlib import Path

from fastapi import FastAPI

from app.__main__ import main
from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.backends.selection import Selection
from app.main import create_app
from app.processes.worker import Worker
from app.registry.repository import Artifact
from app.settings import Settings
from app.types import Arrays, Device


def make_backend(artifact: Artifact, selection: Selection, device: Device) -> Backend:
    slow_s = float(os.environ.get("SLOW_S", "0.2"))
    gate = os.environ.get("SLOW_UNTIL")
    if artifact.id.name == "slow":
        while not Path(os.environ["LOAD_UNTIL"]).exists():
            time.sleep(0.01)

    def script(inputs: Arrays) -> Arrays:
        if (inputs["x"] == 1).any():  # the golden example is quick
            return {"y": inputs["x"] * 2}
        if (inputs["x"] == -1).any():
            ctypes.PyDLL(None).sleep(3600)
        if gate is None:
            time.sleep(slow_s)
        else:
            while not Path(gate).exists():
                time.sleep(0.01)
        return {"y": inputs["x"] * 2}

    return FakeBackend(script)


def create_slow_app(settings: Settings, worker: Worker | None = None) -> FastAPI:
    return create_app(settings, make_backend, worker)


if __name__ == "__main__":
    sys.exit(main(create_slow_app))
