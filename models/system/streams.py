"""Standard input and outputs that a program was started without."""

from __future__ import annotations

import os
import sys


def open_closed_streams() -> None:
    """Open the null device for each standard stream that is closed, as by `2>&-` in a shell.

    Python has None for a closed stream. Its number would go to the next opened file, such as a
    connection to a client, which would then receive what libraries write to standard error. A
    closed standard input stays None, so that a program that needs it can say so.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  # until the process ends
