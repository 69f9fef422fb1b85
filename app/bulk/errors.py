"""What ends a run. Each message is a sentence for the user, and each class has its exit code."""

from __future__ import annotations

import contextlib
import sys
from typing import ClassVar


class BulkError(Exception):
    """The run cannot go on; what it has finished stays, and `--resume` goes on from there."""

    exit_code: ClassVar[int] = 1


class UsageError(BulkError):
    """The command is wrong: nothing was begun."""

    exit_code = 2


class TooManyErrors(BulkError):
    """More bad rows than `--max-errors` allows."""

    exit_code = 3


def tell(*lines: str) -> None:
    """Write lines to standard error; that nobody reads them changes nothing."""
    with contextlib.suppress(OSError):
        sys.stderr.write("".join(f"{line}\n" for line in lines))
        sys.stderr.flush()
