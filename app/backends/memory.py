"""Checks of free memory before a model is loaded: a container that runs out is killed."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from app.errors import DoesNotFit
from models.manifest import Format
from models.system.resources import memory_left_bytes

MIB = 1024 * 1024
# Most host memory while a file is loaded to the CPU, in sizes of the file: the verified copy, the
# model, and what its runtime needs meanwhile. Measured with BERT and ResNet-50, of 90 MB: plain
# TorchScript 2.1, optimized 3.4, compiled 2.9, ONNX Runtime 3.8, OpenVINO 4.5.
PEAKS: Mapping[Format, float] = {
    "torchscript": 2.2,
    "aotinductor": 3.0,
    "onnx": 4.0,
    "openvino": 4.5,
}
OPTIMIZED_PEAK = 3.5
PEAK_ON_GPU = 2.0  # of host memory: the model passes through it


def peak_of(file_format: Format, *, optimized: bool) -> float:
    """Most host memory while such a file is loaded to the CPU, in sizes of the file."""
    return OPTIMIZED_PEAK if optimized else PEAKS[file_format]


def check_fits(
    name: str, nbytes: int, device: torch.device, peak: float, later_bytes: int = 0
) -> None:
    """Check that there is memory to load a file of weights.

    Args:
        name: name of the file, for the message.
        nbytes: size of the file; weights need as much memory.
        device: where the model will be loaded.
        peak: see `peak_of`.
        later_bytes: host memory that the model takes while it serves.

    Raises:
        DoesNotFit: if there is not enough, with the needed and the free memory.
    """
    on_cpu = device.type == "cpu"
    on_host = nbytes * (peak if on_cpu else PEAK_ON_GPU) + (later_bytes if on_cpu else 0)
    _check(name, on_host, memory_left_bytes(), "of memory", "the container")
    if device.type == "cuda":
        free_bytes, _ = torch.cuda.mem_get_info(device)
        _check(name, nbytes, free_bytes, f"on {device}", "the device")


def _check(name: str, needed_bytes: float, free_bytes: int | None, where: str, of: str) -> None:
    if free_bytes is not None and needed_bytes > free_bytes:
        raise DoesNotFit(
            f"{name} does not fit: loading it takes {needed_bytes / MIB:,.0f} MiB {where}, "
            f"{free_bytes / MIB:,.0f} MiB are free; give {of} more, or serve fewer models or "
            "replicas"
        )
