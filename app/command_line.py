"""The server's command line.

It needs neither the log nor the rest of the server, so `torchlane serve --help` does not import
them.
"""

from __future__ import annotations

import argparse

from app.flags import FlagParser
from app.processes.worker import Place
from app.settings import GROUPS, PREFIX, Settings


def parser() -> FlagParser:
    """The command line, with a flag for each setting."""
    flags = FlagParser(
        Settings,
        PREFIX,
        GROUPS,
        prog="torchlane serve",
        usage="%(prog)s [--FLAG VALUE ...]",
        description="Serve exported models over HTTP.",
        epilog="Each flag overrides the variable of the same name: --port 9000 is "
        "TORCHLANE_PORT=9000. API keys and TORCHLANE_CACHE_URL have no flag, because `ps` would "
        "show them. "
        "docs/settings.md describes each setting.",
    )
    flags.add_argument("--worker", type=Place.parse, help=argparse.SUPPRESS)  # set by the parent
    return flags
