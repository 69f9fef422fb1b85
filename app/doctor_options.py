"""The command line of `torchlane doctor`, without what the program imports."""

from __future__ import annotations

import argparse

from models.stores.urls import place
from models.system.command_lines import OneLineParser


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = OneLineParser(
        prog="torchlane doctor",
        description="Print versions, processor, runtimes, compiler, settings, port and repository, "
        "as a bug report needs them. The exit code is 1 if something keeps a server from working.",
    )
    top.add_argument("--model-dir", type=place, help="the repository (default: as set)")
    return top
