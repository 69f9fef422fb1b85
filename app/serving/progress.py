"""The steps of a load, as the log and the lists of models show them."""

from __future__ import annotations

import asyncio

import structlog

from app.registry.loaded_models import LoadedModels
from app.threads import tell
from app.types import ModelId

LOG = structlog.get_logger(__name__)
PROGRESS_S = 2.0


class Progress:
    """Reports the current step of a load, from any thread.

    Created on the event loop, where all visible state is written. The log gets at most one line
    every PROGRESS_S seconds.

    Args:
        model: the version.
        loaded: shows the progress.
        steps: total number on all replicas: load, warm each size, prove.
    """

    def __init__(self, model: ModelId, loaded: LoadedModels, steps: int) -> None:
        self._model = model
        self._loaded = loaded
        self._steps = steps
        self._done = 0
        self._loop = asyncio.get_running_loop()
        self._logged_s = 0.0

    def reached(self, stage: str, step: str) -> None:
        """Report that the next step begins."""
        tell(self._loop, self._show, stage, step)

    def _show(self, stage: str, step: str) -> None:
        share = min(1.0, self._done / self._steps)  # a rebuilt replica repeats its steps
        self._done += 1
        seconds = self._loaded.record_step(self._model, step, stage, round(share, 3))
        if seconds >= self._logged_s + PROGRESS_S:
            self._logged_s = seconds
            LOG.info("model_loading", model=str(self._model), step=step, seconds=round(seconds, 1))
