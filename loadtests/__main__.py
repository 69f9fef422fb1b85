"""`python -m loadtests COMMAND`: see docs/load-testing.md."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from rich.console import Console

from loadtests.bench import session
from loadtests.capacity import commands, options, overload
from loadtests.errors import LoadTestError
from loadtests.networks import compare
from models.streams import open_closed_streams

LOG_WIDTH = 110
FAILED, INTERRUPTED = 1, 130
Act = Callable[[argparse.Namespace, Console, str], int]
COMMANDS: dict[str, tuple[str, Act, Callable[[argparse.ArgumentParser], None]]] = {
    "find-capacity": (
        "Find the highest rate whose 99th percentile stays within an SLO",
        commands.find_capacity,
        options.add_search,
    ),
    "run": ("Offer one constant rate, with gates for CI", commands.run, options.add_run),
    "bench": (
        "Measure Torchlane and other servers on the same work, one core each, in turns",
        session.bench,
        session.add_arguments,
    ),
    "networks": (
        "Measure Torchlane and FastAPI around ONNX Runtime on real networks, in turns",
        compare.compare,
        compare.add_arguments,
    ),
    "overload": (
        "Offer our server 0.7 to 4 times its capacity",
        overload.overload,
        options.add_overload,
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    open_closed_streams()
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    args = parser().parse_args(arguments)
    # a CI log has no width; rich would cut tables at 80 characters
    width = None if sys.stdout.isatty() else LOG_WIDTH
    console = Console(highlight=False, soft_wrap=True, width=width, record=True)
    command = shlex.join(["python", "-m", "loadtests", *arguments])
    _, act, _ = COMMANDS[args.command]
    try:
        with _exit_on_signals():
            return act(args, console, command)
    except LoadTestError as error:
        sys.stderr.write(f"loadtests: {error}\n")
        return FAILED
    except KeyboardInterrupt:
        sys.stderr.write("loadtests: interrupted\n")
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser("python -m loadtests", epilog="See docs/load-testing.md.")
    below = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (what, _, add_arguments) in COMMANDS.items():
        add_arguments(below.add_parser(name, help=what, description=what))
    return top


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
