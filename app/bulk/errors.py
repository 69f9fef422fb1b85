"""Errors that end a run: each message is for the user, and each class has its exit code."""

from __future__ import annotations

import contextlib
import sys
from typing import ClassVar


class BulkError(Exception):
    """The run cannot continue; finished shards stay, and `--resume` continues from there."""

    exit_code: ClassVar[int] = 1


class UsageError(BulkError):
    """The command is invalid, and nothing was begun."""

    exit_code = 2


class TooManyErrors(BulkError):
    """More bad rows than `--max-errors` allows."""

    exit_code = 3


def tell(*lines: str) -> None:
    """Write lines to standard error; a closed standard error is ignored."""
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
