"""Checks of free memory before a model is loaded: a container that runs out is killed."""

from __future__ import annotations

import torch

from app.errors import DoesNotFit
from models.resources import memory_left_bytes

MIB = 1024 * 1024
# While a file is loaded, host memory holds a verified copy of it and, on the CPU, the model itself.
HOST_COPIES = 1


def check_fits(name: str, nbytes: int, device: torch.device, later_bytes: int = 0) -> None:
    """Check that there is memory to load a file of weights.

    Args:
        name: name of the file, for the message.
        nbytes: size of the file; weights need as much memory.
        device: where the model will be loaded.
        later_bytes: host memory that the model takes while it serves.

    Raises:
        DoesNotFit: if there is not enough, with the needed and the free memory.
    """
    on_host = HOST_COPIES * nbytes + (nbytes + later_bytes if device.type == "cpu" else 0)
    _check(name, on_host, memory_left_bytes(), "of memory", "the container")
    if device.type == "cuda":
        left, _ = torch.cuda.mem_get_info(device)
        _check(name, nbytes, left, f"on {device}", "the device")


def _check(name: str, needed: int, left: int | None, where: str, of: str) -> None:
    if left is not None and needed > left:
        raise DoesNotFit(
            f"{name} does not fit: loading it takes {needed / MIB:,.0f} MiB {where}, "
            f"{left / MIB:,.0f} MiB are free; give {of} more, or serve fewer models or replicas"
        )
