"""What runtimes have in common: optional packages, files by name, weights that replicas share."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import tempfile
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, Generic, NamedTuple, TypeVar, cast

Model = TypeVar("Model")
# Loads take turns, so that each sees the memory that the one before took. A load that hangs delays
# the others at most this long.
_LOADS = threading.Lock()
PATIENCE_S = 60.0


class NotInstalled(Exception):
    """A package is not installed; the message says how to install it."""


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


def import_package(module: str, name: str, extra: str) -> Any:
    """Import an optional package, which may take long.

    Args:
        module: its name in Python.
        name: its name for people.
        extra: the extra of this project that installs it.

    Raises:
        NotInstalled: if it is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f"it needs {name}: pip install 'torchlane[{extra}]'") from error


@contextlib.contextmanager
def memory_file() -> Iterator[tuple[BinaryIO, str]]:
    """Provide an empty file in memory and its path, or a temporary file where there is none.

    Without machine code torch holds the GIL while it loads: 192 MiB take 0.12 s by name, 1.3 s from
    a Python object (torch 2.13, AMD EPYC). ONNX Runtime keeps bytes for as long as the model.
    """
    try:
        descriptor = os.memfd_create("model")
    except (AttributeError, OSError):  # another system, or it allows none
        with tempfile.NamedTemporaryFile() as temporary:
            yield cast(BinaryIO, temporary), temporary.name
        return
    with open(descriptor, "w+b") as file:
        yield file, f"/proc/self/fd/{descriptor}"


@contextlib.contextmanager
def named_file(data: bytes) -> Iterator[str]:
    """Provide the path of a file with these bytes."""
    with memory_file() as (file, path):
        file.write(data)
        file.flush()
        yield path


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
