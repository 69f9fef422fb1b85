"""Whose fault it was: what torch raises while a model runs, in the words of this house."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from app.errors import DeviceLost, ModelError, OutOfMemory

# What torch's allocators and libraries say: that of the CPU raises a RuntimeError as for anything
# else, pinned memory what is raised of a lost device, and TorchScript's interpreter makes a
# RuntimeError of whatever it hears from below.
NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
NO_MEMORY = (
    NO_HOST_MEMORY,
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # what it says where there is no room for its own
    "CUDNN_STATUS_ALLOC_FAILED",
)
# Whichever it is, what was asked of the device before may be what it tells of. But cuBLAS, which
# torch lets say so too, also refuses what it does not support, and goes on.
LOST = re.compile(
    r"CUDA error:(?! CUBLAS_STATUS_)|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)"
)


@contextlib.contextmanager
def faults_of(device: torch.device) -> Iterator[None]:
    """Run a model in it.

    Args:
        device: what it runs on, for the message.

    Raises:
        OutOfMemory: if it did not fit; a smaller part of the batch may.
        DeviceLost: if the device is lost to the process.
        ModelError: if the batch made the model fail.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out_of_memory(device, error) from None
    except (torch.jit.Error, RuntimeError, ValueError, TypeError) as error:
        said = str(error)
        if any(words in said for words in NO_MEMORY):
            raise _out_of_memory(device, error) from None
        if isinstance(error, torch.AcceleratorError) or LOST.search(said):
            raise DeviceLost(said) from error
        raise ModelError(said) from error


def _out_of_memory(device: torch.device, error: BaseException) -> OutOfMemory:
    """Without the frames of what was raised: they keep tensors while smaller parts are tried."""
    error.__traceback__ = None
    return OutOfMemory(f"out of memory on {device}")
