"""Loads and runs OpenVINO models: a graph and its weights, in one zip archive.

OpenVINO is an optional package (`torchlane[openvino]`), and imported when the first model loads.
"""

from __future__ import annotations

import io
import threading
import zipfile
from collections.abc import Sequence
from typing import Any

import torch

from models.runtimes.base import SharedModels, VariantFile, on_all_cores
from models.system.archive import ArchiveError, check_archive, read_entries
from models.system.extras import import_package
from models.system.resources import usable_cores

GRAPH, WEIGHTS = "model.xml", "model.bin"
# Kernels that are kept for shapes that came before. The default, 5,000 for each stream, would let
# free sizes fill the memory.
SHAPE_CACHE_CAPACITY = "64"


class OpenVinoForm:
    """Runs a model without the GIL; several threads may share it.

    Args:
        model: OpenVINO's own object, with the only copy of the weights.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._own = threading.local()

    def __call__(self, *tensors: torch.Tensor) -> Sequence[torch.Tensor]:
        """Run one forward.

        Raises:
            RuntimeError: if it fails, for example because of a wrong shape.
        """
        try:
            request = self._own.request
        except AttributeError:
            request = self._own.request = self._model.create_infer_request()
        arrays = [tensor.contiguous().numpy() for tensor in tensors]
        result = request.infer(dict(enumerate(arrays)), share_inputs=True)
        return [torch.from_numpy(array) for array in result.to_tuple()]


_MODELS: SharedModels[OpenVinoForm] = SharedModels()


def openvino() -> Any:
    """Import the package.

    Raises:
        NotInstalled: if it is missing.
    """
    return import_package("openvino", "OpenVINO", "openvino")


def load_openvino(file: VariantFile, streams: int | None = None) -> OpenVinoForm:
    """Load a model for this thread's number of threads; equal ones in use share their weights.

    Args:
        file: the archive, from `pack`.
        streams: how many forwards run at the same time; None: as many as the cores allow.

    Raises:
        NotInstalled: without OpenVINO.
        ArchiveError: if the file must not be unpacked.
        RuntimeError: if OpenVINO cannot read it.
    """
    package = openvino()
    threads = torch.get_num_threads()
    streams = streams or max(1, usable_cores() // threads)

    def load(path: str) -> OpenVinoForm:
        return _compile(package, path, threads, streams)

    return _MODELS.get(file, (threads, streams), load)


def _compile(package: Any, path: str, threads: int, streams: int) -> OpenVinoForm:
    with open(path, "rb") as file:
        names = check_archive(file, "the OpenVINO model", of_torch=False)
        if names != sorted((GRAPH, WEIGHTS)):
            raise ArchiveError(
                f"the OpenVINO model must contain {GRAPH} and {WEIGHTS}, and only these"
            )
        graph, weights = read_entries(file, "the OpenVINO model", (GRAPH, WEIGHTS))
    core = package.Core()
    options = {
        "INFERENCE_PRECISION_HINT": "f32",  # by default bf16, where the processor has it
        "NUM_STREAMS": str(streams),
        "INFERENCE_NUM_THREADS": str(streams * threads),
        "ENABLE_CPU_PINNING": "NO",  # other replicas and the event loop need the cores too
        "CPU_RUNTIME_CACHE_CAPACITY": SHAPE_CACHE_CAPACITY,
    }
    with on_all_cores():
        return OpenVinoForm(core.compile_model(core.read_model(graph, weights), "CPU", options))


def pack(graph: bytes, weights: bytes) -> bytes:
    """Return the archive of a model."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:  # stored: weights do not compress
        archive.writestr(zipfile.ZipInfo(GRAPH), graph)
        archive.writestr(zipfile.ZipInfo(WEIGHTS), weights)
    return file.getvalue()
