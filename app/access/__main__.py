"""`python -m app.access NAME`: creates an API key, shows it once and prints its line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from app.access.entries import PREDICT, SCOPES, EntryError, make_key

USAGE_EXIT_CODE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Create a key; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m app.access",
        description="Create an API key. Its line goes to standard output; append it to the file "
        "that TORCHLANE_API_KEYS_FILE names. The key itself goes to standard error and is not "
        "stored.",
        epilog="To rotate a key, add a second one with the same name, distribute it, and remove "
        "the line of the first. See docs/security.md.",
    )
    parser.add_argument("name", metavar="NAME", help="the key's owner, as shown in metrics")
    parser.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        help=f"what the key allows (default: {PREDICT}); can be repeated",
    )
    parser.add_argument("--limit", default="", help="the key's own rate limit, such as 100/second")
    options = parser.parse_args(arguments)
    try:
        secret, line = make_key(options.name, options.scope or [PREDICT], options.limit)
    except EntryError as error:
        sys.stderr.write(f"app.access: {str(error).removeprefix('line 1: ')}\n")
        return USAGE_EXIT_CODE
    sys.stderr.write(f"The key, shown only once:\n{secret}\n")
    sys.stderr.flush()
    sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
