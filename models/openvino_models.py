"""Loads and runs OpenVINO models: a graph and its weights, in one zip archive.

OpenVINO is an optional package (`torchlane[openvino]`), and imported when the first model loads.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import weakref
import zipfile
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from models.archive import ArchiveError, check_archive, read_entries
from models.resources import usable_cores

GRAPH, WEIGHTS = "model.xml", "model.bin"
INSTALL = "pip install 'torchlane[openvino]'"
# Kernels that are kept for shapes that came before. The default, 5,000 for each stream, would let
# free sizes fill the memory.
KEPT_SHAPES = "64"
_COMPILED: weakref.WeakValueDictionary[tuple[str, int, int], Compiled] = (
    weakref.WeakValueDictionary()
)
_COMPILING = threading.Lock()


class NotInstalled(Exception):
    """OpenVINO is not installed; the message says how to install it."""


class Compiled:
    """A model that is compiled for this processor, with its only copy of the weights.

    Args:
        model: OpenVINO's own object.
    """

    def __init__(self, model: Any) -> None:
        self.model = model


class OpenVinoForm:
    """Runs a model without the GIL; several threads may share it.

    Args:
        compiled: the model.
    """

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self._own = threading.local()

    def __call__(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        """Run one forward.

        Raises:
            RuntimeError: if it fails, for example because of a wrong shape.
        """
        try:
            request = self._own.request
        except AttributeError:
            request = self._own.request = self._compiled.model.create_infer_request()
        arrays = [tensor.contiguous().numpy() for tensor in tensors]
        made = request.infer(dict(enumerate(arrays)), share_inputs=True)
        return [torch.from_numpy(array) for array in made.to_tuple()]


def openvino() -> Any:
    """Import the package.

    Raises:
        NotInstalled: if it is missing.
    """
    try:
        import openvino as package  # noqa: PLC0415 - optional, and slow
    except ImportError as error:
        raise NotInstalled(f"it needs OpenVINO: {INSTALL}") from error
    return package


def load_openvino(data: bytes, streams: int | None = None) -> OpenVinoForm:
    """Load a model for this thread's number of threads; equal ones in use share their weights.

    Args:
        data: the archive, from `packed`.
        streams: how many forwards run at the same time; None: as many as the cores allow.

    Raises:
        NotInstalled: without OpenVINO.
        ArchiveError: if the file must not be unpacked.
        RuntimeError: if OpenVINO cannot read it.
    """
    package = openvino()
    threads = torch.get_num_threads()
    streams = streams or max(1, usable_cores() // threads)
    key = hashlib.sha256(data).hexdigest(), threads, streams
    with _COMPILING:
        compiled = _COMPILED.get(key)
        if compiled is None:
            compiled = _COMPILED[key] = Compiled(_compiled(package, data, threads, streams))
        return OpenVinoForm(compiled)


def _compiled(package: Any, data: bytes, threads: int, streams: int) -> Any:
    names = check_archive(io.BytesIO(data), "the OpenVINO model", of_torch=False)
    if names != sorted((GRAPH, WEIGHTS)):
        raise ArchiveError(f"the OpenVINO model must contain {GRAPH} and {WEIGHTS}, and only these")
    graph, weights = read_entries(io.BytesIO(data), "the OpenVINO model", (GRAPH, WEIGHTS))
    core = package.Core()
    options = {
        "INFERENCE_PRECISION_HINT": "f32",  # by default bf16, where the processor has it
        "NUM_STREAMS": str(streams),
        "INFERENCE_NUM_THREADS": str(streams * threads),
        "ENABLE_CPU_PINNING": "NO",  # other replicas and the event loop need the cores too
        "CPU_RUNTIME_CACHE_CAPACITY": KEPT_SHAPES,
    }
    with _on_all_cores():
        return core.compile_model(core.read_model(graph, weights), "CPU", options)


@contextlib.contextmanager
def _on_all_cores() -> Iterator[None]:
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


def packed(graph: bytes, weights: bytes) -> bytes:
    """Return the archive of a model."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # stored: weights do not compress
        archive.writestr(zipfile.ZipInfo(GRAPH), graph)
        archive.writestr(zipfile.ZipInfo(WEIGHTS), weights)
    return file.getvalue()
