"""`python -m tests.chaos.server`: the real application on backends that go wrong.

All is real but what `faults.py` does to the forward: settings, signals, sockets, engine, threads,
TorchScript. CHAOS_SEED, CHAOS_JOURNAL and CHAOS_HANGS say what goes wrong and where that is told.
SIGUSR2 returns what is free to the system, so that what is left is what the process holds.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from fastapi import FastAPI

from app.__main__ import main
from app.backends.base import Backend
from app.backends.forward import FormBackend
from app.backends.selection import Selection
from app.main import create_app
from app.processes.ending import exit_with
from app.processes.worker import Worker
from app.registry.repository import Artifact
from app.settings import Settings
from app.types import Device
from models.manifest import Manifest
from models.plan import Form
from models.runtimes.forms import Forward
from models.system.heap import collect
from tests.chaos.faults import Faults, FaultyForward
from tests.chaos.journal import Journal

SCRIPT = Form(variant="script")


class FaultyBackend(FormBackend):
    """A TorchScript backend whose forward goes wrong.

    Args:
        folder: the artifact.
        manifest: what is in it.
        device: where to run.
        faults: of the process.
    """

    def __init__(self, folder: Path, manifest: Manifest, device: Device, faults: Faults) -> None:
        super().__init__(folder, manifest, SCRIPT, device)
        self._faults = faults

    def open_files(self, names: Sequence[str], device: torch.device) -> Forward:
        """The real thing, wrapped."""
        return FaultyForward(super().open_files(names, device), self.manifest.model, self._faults)


def make_backend(
    faults: Faults, artifact: Artifact, selection: Selection, device: Device
) -> Backend:
    """See `app.serving.installer.BackendFactory`; of one variant there is nothing to select."""
    return FaultyBackend(artifact.folder, artifact.manifest, device, faults)


def create_chaos_app(settings: Settings, worker: Worker | None = None) -> FastAPI:
    """The application, with backends that go wrong as the environment says."""
    seed = int(os.environ["CHAOS_SEED"]) + (worker.index if worker else 0)
    journal = Journal(Path(os.environ["CHAOS_JOURNAL"]))
    faults = Faults(seed, journal, hangs=os.environ.get("CHAOS_HANGS") == "1")
    return create_app(settings, partial(make_backend, faults), worker)


if __name__ == "__main__":
    signal.signal(signal.SIGUSR2, lambda *_: collect())
    exit_with(main(create_chaos_app))
