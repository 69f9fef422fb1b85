"""Whose fault it was: what torch raises while a model runs, in the words of this house."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from app.errors import DeviceLost, ModelError, OutOfMemory

# What torch's allocators say: that of the CPU raises a RuntimeError as for anything else, and so
# does TorchScript's interpreter of whatever it hears from below.
NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
NO_MEMORY = (NO_HOST_MEMORY, "CUDA out of memory")


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
    except (torch.OutOfMemoryError, MemoryError):
        # Without its cause, whose frames would keep the tensors while smaller parts are tried.
        raise OutOfMemory(f"out of memory on {device}") from None
    except torch.AcceleratorError as error:
        raise DeviceLost(str(error)) from error
    except (torch.jit.Error, RuntimeError, ValueError, TypeError) as error:
        if any(words in str(error) for words in NO_MEMORY):
            raise OutOfMemory(f"out of memory on {device}") from None
        raise ModelError(str(error)) from error
