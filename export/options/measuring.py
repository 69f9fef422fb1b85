"""The options of `torchlane profile` and `torchlane compare`."""

from __future__ import annotations

import argparse

from export.options.artifacts import add_folder
from models.system.command_lines import names, positive, positives
from models.system.local_paths import local_path

PROFILE = (
    "Record the forwards of an artifact's forms, and list the operators that take the most time."
)
COMPARE = """\
Time small functions as an eager loop, batched, scripted and compiled, with published ratios: all
squared distances of a[100,2] and b[200,2], and ten squarings of a vector of five. The results of
all forms are compared before any is timed.
"""
BATCH_SIZES = "1,8"
ROWS = 12  # operators in a table
ROUNDS = 21  # of each function, as in export's own timing


def add_profile(parser: argparse.ArgumentParser) -> None:
    """Add the options of `torchlane profile`."""
    add_folder(parser)
    parser.add_argument(
        "--variant",
        type=names,
        metavar="A,B",
        help="record all forms of these variants (default: the form that a server runs)",
    )
    parser.add_argument(
        "--batch-size",
        type=positives,
        default=BATCH_SIZES,
        metavar="A,B",
        help=f"items of a batch (default: {BATCH_SIZES})",
    )
    parser.add_argument(
        "--length",
        type=positive,
        metavar="N",
        help="items of this length, such as tokens of a text (default: as in the golden examples)",
    )
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: cpu)"
    )
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="compute with N threads on the CPU (default: as many as a server with one replica)",
    )
    parser.add_argument(
        "--rows",
        type=positive,
        default=ROWS,
        metavar="N",
        help=f"operators in each table (default: {ROWS})",
    )
    parser.add_argument(
        "--trace",
        type=local_path,
        metavar="FILE",
        help="write the trace for ui.perfetto.dev or chrome://tracing; gzip if FILE ends in .gz",
    )


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Add the options of `torchlane compare`."""
    for name, default, what in (("rounds", ROUNDS, "of all forms"), ("threads", 1, "of torch")):
        parser.add_argument(f"--{name}", type=positive, default=default, help=what)
