"""Suppresses warnings that users cannot act on."""

from __future__ import annotations

import re
import warnings

# Deprecations that torch 2.13 announces for what is used here on purpose: TorchScript at every
# call, quantized tensors once per process.
QUANTIZED = r"torch\.quantize_per_tensor"
DEPRECATIONS = ("`torch.jit.*is deprecated", QUANTIZED)


def ignore_warnings(*, message: str = "", module: str = "") -> None:
    """Ignore such warnings from now on, in the whole process; cheap if they are ignored already.

    Not `warnings.catch_warnings`, which replaces the filters of the whole process and restores
    them: with two threads, one may restore the temporary filters of the other.

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
    # The first call; or a thread has restored earlier filters, or other filters were set.
    warnings.filterwarnings("ignore", message=message, module=module)
