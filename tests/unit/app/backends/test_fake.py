"""The fake fulfils the backend contract."""

from __future__ import annotations

import numpy as np

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.errors import ModelError
from app.types import Arrays
from tests.unit.app.backends.suite import BackendSuite


class TestFakeBackend(BackendSuite):
    shared = False

    def make(self) -> Backend:
        def script(inputs: Arrays) -> Arrays | None:
            if (inputs["x"] < 0).any():
                raise ModelError("negative")
            return None

        return FakeBackend(script)

    def batch(self, size: int) -> Arrays:
        return {"x": np.arange(size, dtype=np.float32).reshape(size, 1)}

    def bad_batch(self) -> Arrays:
        return {"x": np.full((2, 1), -1, np.float32)}
