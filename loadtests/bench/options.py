"""The command line of the benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadtests.arguments import at_least_one
from loadtests.bench.environments import COMPILED, WITH_ENVIRONMENT
from loadtests.bench.workloads import NAMES, OURS, QUICK, QUICK_SERVERS, SERVERS

SETUP = "setup"
HELP = """Requests per second and latency of Torchlane beside other servers on the same work.

`python -m loadtests.bench setup [PEER ...]` makes the environments of the peers first."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for.

    Attributes:
        seconds: measured, of each run.
        servers: that stand beside ours.
        package: the folder from which ours runs; None: the checkout, which is not compiled.
    """

    workloads: tuple[str, ...]
    servers: tuple[str, ...]
    rounds: int
    seconds: int
    artifacts: Path
    out: Path
    package: Path | None


@dataclass(frozen=True, slots=True)
class Setup:
    """Make environments instead.

    Attributes:
        peers: all if there is none.
    """

    peers: tuple[str, ...]


def parse(arguments: Sequence[str]) -> Options | Setup:
    """Options from the command line."""
    if arguments and arguments[0] == SETUP:
        parser = argparse.ArgumentParser(prog=f"python -m loadtests.bench {SETUP}")
        parser.add_argument("peers", nargs="*", metavar="PEER", help=", ".join(WITH_ENVIRONMENT))
        return Setup(tuple(parser.parse_args(arguments[1:]).peers))
    given = _parser().parse_args(arguments)
    quick: bool = given.quick
    servers = given.servers or (QUICK_SERVERS if quick else SERVERS)
    return Options(
        workloads=given.workloads or (QUICK if quick else NAMES),
        servers=tuple(server for server in servers if server != OURS),
        rounds=given.rounds or (1 if quick else 3),
        seconds=given.seconds or (2 if quick else 4),
        artifacts=given.artifacts,
        out=given.out,
        package=None if given.pure else COMPILED,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtests.bench", description=HELP)
    parser.add_argument(
        "--workloads", type=_names(NAMES), metavar="A,B", help=f"of {', '.join(NAMES)}"
    )
    parser.add_argument(
        "--servers", type=_names((OURS, *SERVERS)), metavar="A,B", help=f"of {', '.join(SERVERS)}"
    )
    parser.add_argument("--rounds", type=at_least_one, help="default: 3")
    parser.add_argument("--seconds", type=at_least_one, help="whole ones, each run; default: 4")
    parser.add_argument(
        "--quick", action="store_true", help="one round, two seconds, fewer workloads and servers"
    )
    parser.add_argument(
        "--pure", action="store_true", help="run ours from the checkout, not from what is compiled"
    )
    parser.add_argument("--artifacts", type=Path, default=Path("artifacts"))
    parser.add_argument("--out", type=Path, default=Path("reports"), help="of bench.json and .html")
    return parser


def _names(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """Names of a list, separated by commas."""

    def names(text: str) -> tuple[str, ...]:
        found = tuple(name.strip() for name in text.split(",") if name.strip())
        unknown = [name for name in found if name not in known]
        if unknown or not found:
            raise argparse.ArgumentTypeError(
                f"{', '.join(unknown) or 'nothing'}: choose of {', '.join(known)}"
            )
        return found

    return names
