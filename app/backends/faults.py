"""Translates torch's errors while a model runs into this project's errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

import torch

from app.errors import DeviceLost, ModelError, OutOfMemory
from models.runtimes.torchscript import ScriptError

# Messages of torch's allocators and libraries. The CPU's allocator raises a plain RuntimeError,
# pinned memory raises the error of a lost device, and TorchScript's interpreter converts any
# underlying error to a RuntimeError.
NO_HOST_MEMORY = "DefaultCPUAllocator: can't allocate memory"
NO_MEMORY = (
    NO_HOST_MEMORY,
    "CUDA out of memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # raised if its own buffers do not fit
    "CUDNN_STATUS_ALLOC_FAILED",
)
# Such an error may come from any earlier operation on the device. But cuBLAS, whose errors torch
# reports in the same words, also rejects operations that it does not support, and still works.
LOST_DEVICE = re.compile(
    r"CUDA error:(?! CUBLAS_STATUS_)|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR|MAPPING_ERROR)"
)


@contextlib.contextmanager
def faults_of(device: torch.device) -> Iterator[None]:
    """Translate the errors of a model that runs in this context.

    Args:
        device: where it runs, for the message.

    Raises:
        OutOfMemory: if it did not fit; a smaller part of the batch may fit.
        DeviceLost: if the process has lost the device.
        ModelError: if the batch made the model fail.
    """
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise _out_of_memory(device, error) from None
    except (ScriptError, RuntimeError, ValueError, TypeError) as error:
        text = str(error)
        if any(words in text for words in NO_MEMORY):
            raise _out_of_memory(device, error) from None
        if isinstance(error, torch.AcceleratorError) or LOST_DEVICE.search(text):
            raise DeviceLost(text) from error
        raise ModelError(text) from error


def _out_of_memory(device: torch.device, error: BaseException) -> OutOfMemory:
    """An error without its cause's frames, which keep tensors while smaller parts are tried."""
    error.__traceback__ = None
    return OutOfMemory(f"out of memory on {device}")
