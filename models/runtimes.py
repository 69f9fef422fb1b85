"""What runtimes have in common: optional packages, files by name, weights that replicas share."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import io
import os
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Generic, NamedTuple, TypeVar

Loaded = TypeVar("Loaded")
# Loads take turns, so that each sees the memory that the one before took. A load that hangs delays
# the others at most this long.
_LOADS = threading.Lock()
PATIENCE_S = 60.0


class NotInstalled(Exception):
    """A package is not installed; the message says how to install it."""


class File(NamedTuple):
    """A file of a variant.

    Attributes:
        digest: SHA-256 of its bytes, in hex.
        opened: provides its bytes for as long as a load needs them.
    """

    digest: str
    opened: Callable[[], AbstractContextManager[bytes]]

    @classmethod
    def of(cls, data: bytes) -> File:
        """Return the file with these bytes."""
        return cls(hashlib.sha256(data).hexdigest(), lambda: contextlib.nullcontext(data))


class Shared(Generic[Loaded]):
    """The models of a process: equal ones that are in use are loaded once, for all replicas."""

    def __init__(self) -> None:
        self._loaded: weakref.WeakValueDictionary[Hashable, Loaded] = weakref.WeakValueDictionary()

    def get(
        self,
        file: File,
        how: Hashable,
        load: Callable[[bytes], Loaded],
        may_share: Callable[[Loaded], bool] = lambda _: True,
    ) -> Loaded:
        """Return the model in a file, which is freed with the last reference to it.

        Args:
            file: opened only if its model is not loaded yet.
            how: everything else that its loaded form depends on.
            load: loads its bytes.
            may_share: whether several threads may run what was loaded.
        """
        key = (file.digest, how)
        alone = _LOADS.acquire(timeout=PATIENCE_S)
        try:
            found = self._loaded.get(key)
            if found is None:
                with file.opened() as data:
                    found = load(data)
                if may_share(found):
                    self._loaded[key] = found
            return found
        finally:
            if alone:
                _LOADS.release()


def imported(module: str, name: str, extra: str) -> Any:
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
def named_file(data: bytes) -> Iterator[str | io.BytesIO]:
    """Provide the bytes as a file that a runtime can open by name, if the system supports that.

    Torch holds the GIL while it loads: 192 MiB take 0.12 s by name, 1.3 s from a Python
    object (torch 2.13, AMD EPYC). ONNX Runtime keeps bytes for as long as the model.
    """
    if not hasattr(os, "memfd_create"):
        yield io.BytesIO(data)
        return
    with open(os.memfd_create("model"), "wb") as file:
        file.write(data)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


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
