"""The options of `torchlane export handler`."""

from __future__ import annotations

import argparse
import sys

from export.options.artifacts import add_out
from models.system.command_lines import positive
from models.system.local_paths import local_path

DESCRIPTION = (
    "Create an artifact of a handler: your own Python around served models. It is run on the "
    "examples, whose answers a server must get again before it serves the handler."
)


def add_handler(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `torchlane export handler`."""
    parser.add_argument(
        "source",
        type=local_path,
        metavar="FILE|FOLDER",
        help="the Python file with the class, the folder with all files that the handler needs, or "
        "a TorchServe archive (.mar)",
    )
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the handler's name in URLs (default: that of the file; of an archive, its model's)",
    )
    parser.add_argument(
        "--entry",
        metavar="MODULE:CLASS",
        help="the class to run, such as shop:Shop (default: the only torchlane.Handler there is)",
    )
    parser.add_argument(
        "--example",
        type=local_path,
        action="append",
        required=True,
        metavar="FILE",
        help="the body of a request, such as street.jpg or request.json; may be repeated",
    )
    parser.add_argument(
        "--media-type",
        metavar="TYPE",
        help="the Content-Type of all examples (default: by the ending of each file)",
    )
    parser.add_argument(
        "--server",
        metavar="URL",
        help="a running server with the models that the handler calls, such as "
        "http://127.0.0.1:8000; needed if it calls any",
    )
    parser.add_argument(
        "--python",
        default=sys.executable,
        metavar="FILE",
        help="the interpreter to run it with, such as /venvs/shop/bin/python (default: this one)",
    )
    parser.add_argument("--description", default="", metavar="TEXT", help="for people")
    _add_limits(parser)
    _add_archive(parser)
    add_out(parser, "NAME")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--processes",
        type=positive,
        default=1,
        metavar="N",
        help="processes that run it, in each process of the server (default: 1)",
    )
    parser.add_argument(
        "--concurrency",
        type=positive,
        metavar="N",
        help="requests that run at once in a process (default: 32 of `async def predict`, else 8; "
        "of an archive, always 1)",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        metavar="S",
        help="the longest time of one request (default: 30)",
    )
    parser.add_argument(
        "--memory",
        type=positive,
        default=2048,
        metavar="MIB",
        help="MiB of memory of one process with its children; more ends it (default: 2048)",
    )
    parser.add_argument(
        "--queue-limit",
        type=positive,
        default=256,
        metavar="N",
        help="requests that may wait for a process; more are rejected (default: 256)",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=positive,
        metavar="N",
        help="the largest body of a request (default: the server's limit)",
    )


def _add_archive(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("for a TorchServe archive")
    group.add_argument(
        "--model",
        dest="served_model",
        metavar="NAME[/VERSION]",
        help="the served model that the handler uses as self.model, such as the one that "
        "`torchlane adopt` made of the archive (default: the handler loads the archive's own one)",
    )
    group.add_argument(
        "--model-returns",
        dest="served_returns",
        choices=("tensor", "outputs"),
        help="whether that network returns a tensor, or outputs in a tuple or dict (default: as "
        "the archive's TorchScript says)",
    )
