"""`torchlane completion SHELL`: prints a script with which a shell completes commands.

The script knows commands, flags and choices, and starts no Python when a key is pressed. It belongs
to one release: print it again after an update.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec

import torchlane
from models.catalog import CATALOG
from models.stores.urls import place
from models.system.command_lines import USAGE_EXIT_CODE, OneLineParser
from models.system.extras import MissingExtra, check_extra
from models.system.local_paths import local_path
from torchlane.command import PROGRAMS

NAME = "torchlane"
SHELLS = ("bash", "zsh")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the script; return the exit code."""
    shell = parser().parse_args(arguments).shell
    try:
        check_extra("completion", "completion", ("shtab",))
    except MissingExtra as error:
        sys.stderr.write(f"torchlane: {error}\n")
        return USAGE_EXIT_CODE
    sys.stdout.write(script(shell))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = OneLineParser(
        prog=f"{NAME} completion",
        description="Print a script with which a shell completes commands, flags and choices.",
        epilog="bash: torchlane completion bash > ~/.local/share/bash-completion/completions/"
        "torchlane. zsh: torchlane completion zsh > FOLDER/_torchlane, in a folder of $fpath.",
    )
    top.add_argument("shell", choices=SHELLS)
    return top


PATHS = ("Path", "{Path,StoreUrl}")  # so pydantic names a path


def script(shell: str) -> str:
    """The script of a shell."""
    import shtab  # noqa: PLC0415 # an extra

    parsers = dict(_parsers())
    for name, each in parsers.items():
        each.description = PROGRAMS[name].help  # one line, as zsh shows it
        for action in _actions(each):
            if action.dest == "model" and name in ("export", "train"):
                action.choices = tuple(CATALOG)
            elif action.type in (local_path, place) or action.metavar in PATHS:
                action.complete = shtab.FILE  # type: ignore[attr-defined] # shtab's own
            elif isinstance(action.metavar, str) and action.metavar.startswith("{"):
                action.choices = action.metavar[1:-1].split(",")  # so pydantic names a choice
    top = argparse.ArgumentParser(NAME)
    top.add_argument("--version", "-V", action="version", version=torchlane.__version__)
    below = top.add_subparsers(parser_class=_taken_from(parsers))
    for name in parsers:
        below.add_parser(name, help=PROGRAMS[name].help)
    return shtab.complete(top, shell)


def _parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The command line of each command that is installed."""
    for name, program in PROGRAMS.items():
        try:
            find_spec(program.module)
        except ModuleNotFoundError:  # images have only the packages that they run
            continue
        yield name, program.parser()


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The arguments of a command line and of the commands below it."""
    for action in parser._actions:  # argparse has no public way
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _actions(each)


def _taken_from(parsers: Mapping[str, argparse.ArgumentParser]) -> type[argparse.ArgumentParser]:
    """What `add_subparsers` may use as a class, to add parsers that exist."""

    def take(*, prog: str, **_: object) -> argparse.ArgumentParser:
        return parsers[prog.removeprefix(f"{NAME} ")]

    return take  # type: ignore[return-value] # it is only called


if __name__ == "__main__":
    sys.exit(main())
