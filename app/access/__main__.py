"""`torchlane keys NAME`: creates an API key, shows it once and prints its line."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import TextIO

from app.access.entries import PREDICT, SCOPES, EntryError, make_key
from models.system.command_lines import USAGE_EXIT_CODE, OneLineParser

FAILED_EXIT_CODE = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Create a key; returns the exit code."""
    options = parser().parse_args(arguments)
    try:
        secret, line = make_key(options.name, options.scope or [PREDICT], options.limit)
    except EntryError as error:
        sys.stderr.write(f"torchlane: {str(error).removeprefix('line 1: ')}\n")
        return USAGE_EXIT_CODE
    try:
        _write(sys.stderr, f"The key, shown only once:\n{secret}\n")
        _write(sys.stdout, f"{line}\n")
    except OSError as error:
        if sys.stderr is not None:
            problem = f"the key and its line need standard output and error: {error.strerror}"
            sys.stderr.write(f"torchlane: {problem}; run this again\n")
        return FAILED_EXIT_CODE
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = OneLineParser(
        prog="torchlane keys",
        description="Create an API key. Its line goes to standard output; append it to the file "
        "that TORCHLANE_API_KEYS_FILE names. The key itself goes to standard error and is not "
        "stored.",
        epilog="To rotate a key, add a second one with the same name, distribute it, and remove "
        "the line of the first. See docs/security.md.",
    )
    top.add_argument("name", metavar="NAME", help="the key's owner, as shown in metrics")
    top.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        help=f"what the key allows (default: {PREDICT}); can be repeated",
    )
    top.add_argument("--limit", default="", help="the key's own rate limit, such as 100/second")
    return top


def _write(stream: TextIO | None, text: str) -> None:
    """Write at once, so that nobody stores a key that was not shown, or shows one not stored.

    Raises:
        OSError: if the stream is closed, or cannot be written.
    """
    if stream is None:
        raise OSError(errno.EBADF, "one is closed")
    os.write(stream.fileno(), text.encode())


if __name__ == "__main__":
    sys.exit(main())
