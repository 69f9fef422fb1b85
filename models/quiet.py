"""Warnings that nobody could do anything about, passed over for good."""

from __future__ import annotations

import re
import warnings

# What torch 2.13 tells of what we do on purpose: of TorchScript at every call, of quantized tensors
# once a process.
QUANTIZED = r"torch\.quantize_per_tensor"
DEPRECATIONS = ("`torch.jit.*is deprecated", QUANTIZED)


def ignore_warnings(*, message: str = "", module: str = "") -> None:
    """Pass over such warnings from now on, in the whole process; cheap where it is so already.

    Not `warnings.catch_warnings`, which exchanges the filters of the whole process and puts the
    former ones back: of two threads that do so one may put back what the other one had for a while.

    Args:
        message: a pattern that the text begins with; empty: any.
        module: a pattern that the name of the module that warns begins with; empty: any.
    """
    wanted = (
        "ignore",
        re.compile(message, re.IGNORECASE) if message else None,
        Warning,
        re.compile(module) if module else None,
        0,
    )
    for each in warnings.filters:  # the first that fits decides
        if each == wanted:
            return
        if each[0] != "ignore":
            break
    # The first time; or a thread has put the former ones back, or somebody has set others.
    warnings.filterwarnings("ignore", message=message, module=module)
