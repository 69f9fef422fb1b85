"""What every backend must do: one suite, run over each implementation by its own test file."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod

import numpy as np
import pytest

from app.backends.base import Backend
from app.backends.fake import FakeBackend
from app.errors import ModelError
from app.types import Arrays
from tests.artifacts import small_batch


class BackendSuite(ABC):
    """Subclass it as `TestSomething`, and say how a backend is made and what it takes.

    Attributes:
        shared: whether two of them share what they loaded.
    """

    shared = True

    @abstractmethod
    def make(self) -> Backend:
        """A backend that is not loaded yet."""

    @abstractmethod
    def batch(self, size: int) -> Arrays:
        """A batch of different items."""

    @abstractmethod
    def bad_batch(self) -> Arrays:
        """A batch that makes the model fail."""

    @pytest.fixture
    def backend(self) -> Backend:
        backend = self.make()
        backend.load()
        backend.warm_up([self.batch(size) for size in (1, 2, 4, 8)])
        return backend

    def test_output_has_as_many_rows_as_input(self, backend: Backend) -> None:
        for size in (1, 2, 3, 7, 8, 9, 20):
            outputs = backend.run(self.batch(size))
            assert outputs
            assert all(len(array) == size for array in outputs.values())

    def test_answer_does_not_depend_on_the_batch(self, backend: Backend) -> None:
        batch = self.batch(8)
        whole = {name: array.copy() for name, array in backend.run(batch).items()}
        for row in range(8):
            alone = backend.run({name: array[row : row + 1] for name, array in batch.items()})
            for name, array in alone.items():
                np.testing.assert_allclose(array[0], whole[name][row], rtol=1e-4, atol=1e-5)

    def test_inputs_are_never_modified(self, backend: Backend) -> None:
        batch = self.batch(4)
        before = {name: array.copy() for name, array in batch.items()}
        for array in batch.values():
            array.setflags(write=False)
        backend.run(batch)
        for name, array in batch.items():
            np.testing.assert_array_equal(array, before[name])

    def test_a_failed_batch_is_a_model_error(self, backend: Backend) -> None:
        with pytest.raises(ModelError):
            backend.run(self.bad_batch())
        assert backend.run(self.batch(2))

    def test_backend_runs_without_warming(self) -> None:
        backend = self.make()
        backend.load()
        assert backend.run(self.batch(3))

    def test_equal_backends_share_what_they_loaded(self) -> None:
        one, other = self.make(), self.make()
        one.load()
        assert not other.shares(one)
        other.load()
        assert other.shares(one) is self.shared
        one.close()
        assert not other.shares(one)
        assert not other.shares(FakeBackend())

    def test_backend_works_in_another_thread(self) -> None:
        backend = self.make()
        failures: list[BaseException] = []

        def work() -> None:
            try:
                backend.load()
                backend.warm_up([self.batch(2)])
                backend.run(self.batch(2))
                backend.close()
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert failures == []

    def test_backend_may_be_closed_twice_or_unloaded(self) -> None:
        backend = self.make()
        backend.close()
        backend.load()
        backend.close()
        backend.close()


class SmallSuite(BackendSuite):
    """The suite for a backend of `Small`, which needs pictures of 4 x 4."""

    def batch(self, size: int) -> Arrays:
        """See `BackendSuite`."""
        return small_batch(size)

    def bad_batch(self) -> Arrays:
        """See `BackendSuite`."""
        return {**small_batch(2), "picture": np.zeros((2, 1, 3, 3), np.float32)}
