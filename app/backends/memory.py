"""Is there memory for a model? Asked before it is loaded: a container that runs out is killed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

from app.errors import DoesNotFit
from models.resources import memory_left_bytes

MIB = 1024 * 1024
# While a file is loaded it is there as bytes, whose digest was checked, as a file that torch can
# open by name, and, on the CPU, as the model itself: of 477 MiB 920 to 1,360 MiB were taken.
HOST_COPIES = 2


# What one load takes, the next one sees: they go one after the other. But one that hangs holds no
# other up for longer than this.
_LOADS = threading.Lock()
PATIENCE_S = 60.0


@contextlib.contextmanager
def room_for(name: str, nbytes: int, device: torch.device) -> Iterator[None]:
    """Load a file of weights in it, if there is memory for that; see `check_fits`."""
    alone = _LOADS.acquire(timeout=PATIENCE_S)
    try:
        check_fits(name, nbytes, device)
        yield
    finally:
        if alone:
            _LOADS.release()


def check_fits(name: str, nbytes: int, device: torch.device) -> None:
    """Return if a file of weights can be loaded.

    Args:
        name: of the file, for the message.
        nbytes: its size; weights are stored as they are in memory.
        device: where the model goes.

    Raises:
        DoesNotFit: if there is no memory for it, saying how much is needed and how much there is.
    """
    on_host = HOST_COPIES * nbytes + (nbytes if device.type == "cpu" else 0)
    _check(name, on_host, memory_left_bytes(), "of memory", "the container")
    if device.type == "cuda":
        left, _ = torch.cuda.mem_get_info(device)
        _check(name, nbytes, left, f"on {device}", "the device")


def _check(name: str, needed: int, left: int | None, where: str, of: str) -> None:
    if left is not None and needed > left:
        raise DoesNotFit(
            f"{name} does not fit: to load it takes {needed / MIB:,.0f} MiB {where}, and "
            f"{left / MIB:,.0f} MiB are left; give {of} more, or serve fewer models or replicas"
        )
