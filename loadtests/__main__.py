"""`torchlane load COMMAND`: see docs/load-testing.md."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from loadtests.bench.options import add_bench
from loadtests.capacity.options import add_overload, add_run, add_search
from loadtests.errors import LoadTestError
from loadtests.networks.options import add_networks
from models.system.command_lines import INTERRUPTED_EXIT_CODE, USAGE_EXIT_CODE, OneLineParser
from models.system.extras import MissingExtra, check_extra
from models.system.streams import open_closed_streams

if TYPE_CHECKING:
    from rich.console import Console

PROGRAM = "torchlane load"
LOG_WIDTH = 110
FAILED = 1
LOCUST = "locust"
# What runs a command: its options, where to write, and the command for the report.
Act = Callable[[argparse.Namespace, "Console", str], int]
COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    "find-capacity": (
        "Find the highest rate whose 99th percentile stays within an SLO",
        add_search,
    ),
    "run": ("Offer one constant rate, with gates for CI", add_run),
    "bench": (
        "Measure Torchlane and other servers on the same work, one core each, in turns",
        add_bench,
    ),
    "networks": (
        "Measure Torchlane and FastAPI around ONNX Runtime on real networks, in turns",
        add_networks,
    ),
    "overload": ("Offer our server 0.7 to 4 times its capacity", add_overload),
    LOCUST: ("Run Locust with our users; all arguments are Locust's", lambda _: None),
}


ROOT = Path(__file__).resolve().parents[1]
LOCUSTFILE = Path(__file__).with_name("locustfile.py")
OF_A_CHECKOUT = ("bench", "networks", "overload")


def main(arguments: Sequence[str] | None = None) -> int:
    open_closed_streams()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if arguments[:1] == [LOCUST]:
            _become_locust(arguments[1:])
        args = parser().parse_args(arguments)
        check_extra("load", "loadtests", ("rich",))
        if args.command in OF_A_CHECKOUT and not (ROOT / "Makefile").exists():
            raise LoadTestError(
                f"{args.command} starts servers that an installed package lacks: run it in a "
                "checkout"
            )
        with _exit_on_signals():
            return _actions()[args.command](args, _console(), f"{PROGRAM} {shlex.join(arguments)}")
    except (LoadTestError, MissingExtra) as error:
        sys.stderr.write(f"torchlane: {error}\n")
        return USAGE_EXIT_CODE if isinstance(error, MissingExtra) else FAILED
    except KeyboardInterrupt:
        sys.stderr.write("torchlane: interrupted\n")
        return INTERRUPTED_EXIT_CODE


def parser() -> argparse.ArgumentParser:
    top = OneLineParser(PROGRAM, epilog="See docs/load-testing.md.")
    below = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (what, add_arguments) in COMMANDS.items():
        add_arguments(below.add_parser(name, help=what, description=what))
    return top


def _become_locust(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by Locust, which patches the process that imports it.

    Raises:
        MissingExtra: if Locust is not installed.
    """
    check_extra(f"load {LOCUST}", "loadtests", (LOCUST,))
    # -P: a user's locust.py in the working directory is not Locust.
    command = [sys.executable, "-P", "-m", LOCUST, "--locustfile", str(LOCUSTFILE), *arguments]
    os.execv(sys.executable, command)  # nosec B606 # as the caller asks


def _actions() -> dict[str, Act]:
    """Import what runs the commands: not at the top, because that takes seconds."""
    from loadtests.bench.session import bench  # noqa: PLC0415
    from loadtests.capacity.commands import find_capacity, run  # noqa: PLC0415
    from loadtests.capacity.overload import overload  # noqa: PLC0415
    from loadtests.networks.compare import compare  # noqa: PLC0415

    return {
        "find-capacity": find_capacity,
        "run": run,
        "bench": bench,
        "networks": compare,
        "overload": overload,
    }


def _console() -> Console:
    from rich.console import Console  # noqa: PLC0415 # an extra

    # a CI log has no width; rich would cut tables at 80 characters
    width = None if sys.stdout.isatty() else LOG_WIDTH
    return Console(highlight=False, soft_wrap=True, width=width, record=True)


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Exit on SIGTERM and SIGHUP too, so that no stopped server is left behind."""

    def leave(number: int, _: FrameType | None) -> None:
        sys.exit(128 + number)

    signals = [  # nohup ignores SIGHUP
        each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) != signal.SIG_IGN
    ]
    before = {each: signal.signal(each, leave) for each in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(main())
