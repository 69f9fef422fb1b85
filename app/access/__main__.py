"""`python -m app.access NAME`: makes an API key, shows it once, prints the line that lets it in."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from app.access.entries import PREDICT, SCOPES, EntryError, make_key

USAGE_EXIT_CODE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a key; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m app.access",
        description="Make an API key. Its line goes to the standard output, to be added to the "
        "file that TORCHLANE_API_KEYS_FILE names; the key itself, which is kept nowhere, to the "
        "standard error.",
        epilog="To change a key, add a second one of the same name, hand it out, and remove the "
        "line of the first. See docs/security.md.",
    )
    parser.add_argument("name", metavar="NAME", help="of whoever will have it, as metrics show it")
    parser.add_argument(
        "--scope",
        action="append",
        choices=SCOPES,
        help=f"what it allows (default: {PREDICT}); may be given several times",
    )
    parser.add_argument("--limit", default="", help="its own rate limit, such as 100/second")
    options = parser.parse_args(arguments)
    try:
        secret, line = make_key(options.name, options.scope or [PREDICT], options.limit)
    except EntryError as error:
        sys.stderr.write(f"app.access: {str(error).removeprefix('line 1: ')}\n")
        return USAGE_EXIT_CODE
    sys.stderr.write(f"The key, shown only now:\n{secret}\n")
    sys.stderr.flush()
    sys.stdout.write(f"{line}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
