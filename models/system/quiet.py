"""Suppresses warnings that users cannot act on."""

from __future__ import annotations

import re
import warnings

# Deprecation warnings of torch for features that are used on purpose: TorchScript at every
# call, quantized tensors once per process.
QUANTIZED_WARNING = r"torch\.quantize_per_tensor"
DEPRECATIONS = ("`torch.jit.*is deprecated", QUANTIZED_WARNING)


def ignore_warnings(*, message: str = "", module: str = "") -> None:
    """Ignore such warnings from now on in the whole process; cheap if they already are.

    Not `warnings.catch_warnings`, which replaces the filters of the whole process and restores
    them: with two threads, one may restore the temporary filters of the other.

    Args:
        message: a pattern for the beginning of the text; empty: any.
        module: a pattern for the beginning of the warning module's name; empty: any.
    """
    entry = (
        "ignore",
        re.compile(message, re.IGNORECASE) if message else None,
        Warning,
        re.compile(module) if module else None,
        0,
    )
    for each in warnings.filters:  # the first match decides
        if each == entry:
            return
        if each[0] != "ignore":
            break
    # The first call, or a thread has restored earlier filters, or others were set.
    warnings.filterwarnings("ignore", message=message, module=module)
