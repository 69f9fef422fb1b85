"""What runtimes have in common: files of variants, weights that replicas share."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from models.system.memory_files import named_file

Model = TypeVar("Model")
# Loads take turns, so that each sees the memory that the one before took. A load that hangs delays
# the others at most this long.
_LOADS = threading.Lock()
PATIENCE_S = 60.0


class VariantFile(NamedTuple):
    """A file of a variant.

    Attributes:
        digest: SHA-256 of its bytes, in hex.
        open: provides its path for as long as a load needs it.
    """

    digest: str
    open: Callable[[], AbstractContextManager[str]]

    @classmethod
    def of(cls, data: bytes) -> VariantFile:
        """Return the file with these bytes."""
        return cls(hashlib.sha256(data).hexdigest(), lambda: named_file(data))

    @classmethod
    def at(cls, path: Path, digest: str) -> VariantFile:
        """Return a file on a disk that nobody changes meanwhile."""
        return cls(digest, lambda: contextlib.nullcontext(str(path)))


class SharedModels(Generic[Model]):
    """The models of a process: equal ones that are in use are loaded once, for all replicas."""

    def __init__(self) -> None:
        self._models: weakref.WeakValueDictionary[Hashable, Model] = weakref.WeakValueDictionary()
        self._may_share: dict[Hashable, bool] = {}  # of all that were ever loaded: small

    def get(
        self,
        file: VariantFile,
        how: Hashable,
        load: Callable[[str], Model],
        may_share: Callable[[Model], bool] = lambda _: True,
    ) -> Model:
        """Return the model in a file, which is freed with the last reference to it.

        Args:
            file: opened only if its model is not loaded yet.
            how: everything else that its loaded form depends on.
            load: loads it, by its path.
            may_share: whether several threads may run what was loaded; asked once for a file.
        """
        key = (file.digest, how)
        is_locked = _LOADS.acquire(timeout=PATIENCE_S)
        try:
            model = self._models.get(key)
            if model is None:
                with file.open() as path:
                    model = load(path)
                if key not in self._may_share:
                    self._may_share[key] = may_share(model)
                if self._may_share[key]:
                    self._models[key] = model
            return model
        finally:
            if is_locked:
                _LOADS.release()


@contextlib.contextmanager
def on_all_cores() -> Iterator[None]:
    """Let threads that begin here run on each core of the process: they work for all replicas."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    own = os.sched_getaffinity(0)
    with contextlib.suppress(OSError):  # forbidden: nothing is restricted then
        os.sched_setaffinity(0, os.sched_getaffinity(os.getpid()))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, own)
