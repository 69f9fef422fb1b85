"""`python -m loadtests`: how much a server holds, and whether it still does.

find-capacity  the highest rate whose 99th percentile stays within an SLO
run            one constant rate, with gates for CI
overload       what servers of its own do with 0.7 to 4 times what they hold
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from loadtests.capacity import commands, options
from loadtests.capacity.overload import overload
from loadtests.openloop.address import AddressError, Unreachable
from loadtests.openloop.generator import TrialTooLarge
from loadtests.reports import OutputError
from loadtests.traffic.drawing import WorkloadError
from loadtests.traffic.target import TargetError

LOG_WIDTH = 110
# whatever else is raised is a bug and shows its traceback
EXPECTED = (
    AddressError,
    options.OptionsError,
    OutputError,
    TargetError,
    WorkloadError,
    Unreachable,
    TrialTooLarge,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    given = parser().parse_args(arguments)
    # a log of CI has no width of its own; rich would cut tables at 80 characters
    width = None if sys.stdout.isatty() else LOG_WIDTH
    console = Console(highlight=False, soft_wrap=True, width=width, record=True)
    command = shlex.join(["python", "-m", "loadtests", *arguments])
    acts = {"find-capacity": commands.find_capacity, "run": commands.run, "overload": overload}
    try:
        return acts[given.command](given, console, command)
    except EXPECTED as error:
        sys.stderr.write(f"loadtests: {error}\n")
        return commands.FAILED
    except KeyboardInterrupt:
        sys.stderr.write("loadtests: interrupted\n")
        return commands.INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="python -m loadtests",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    below = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    search = below.add_parser("find-capacity", help="search the highest rate within an SLO")
    options.add_common(search, "reports/capacity")
    options.add_search(search)
    single = below.add_parser("run", help="one constant rate, open loop")
    options.add_common(single, "reports/run")
    options.add_run(single)
    options.add_overload(below.add_parser("overload", help="goodput under overload"))
    return top


if __name__ == "__main__":
    sys.exit(main())
