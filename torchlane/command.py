"""The command `torchlane`: starts the program of a command, which imports what it needs.

`torchlane serve --port 9000` is `python -m app --port 9000`. This module imports hardly
more than the standard library, so that an answer to `torchlane --help` takes no longer than
Python's own start.
"""

from __future__ import annotations

import os
import runpy
import select
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

import torchlane
from models.choices import did_you_mean

if TYPE_CHECKING:
    import argparse

UNREAD_EXIT_CODE = 1
USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130


class Program(NamedTuple):
    """A command's program.

    Attributes:
        help: what the command does, in a few words.
        module: run as the main module.
        arguments: put before the caller's.
        parsed_in: the module whose `parser` returns the command line, if it is another one.
        parser_helps: whether the command line alone answers `--help`, because the program takes
            long to import.
    """

    help: str
    module: str
    arguments: tuple[str, ...] = ()
    parsed_in: str = ""
    parser_helps: bool = False

    def parser(self) -> argparse.ArgumentParser:
        """The command line.

        Raises:
            ModuleNotFoundError: if this installation lacks the program.
        """
        module = import_module(self.parsed_in or self.module)
        parser: argparse.ArgumentParser = module.parser(*self.arguments)
        return parser


def _of_export(what: str, *arguments: str) -> Program:
    return Program(what, "export.__main__", arguments, "export.cli")


GROUPS: Mapping[str, Mapping[str, Program]] = {
    "make artifacts": {
        "export": _of_export("export a model of the catalog"),
        "adopt": _of_export("export a model that exists as a file", "adopt"),
        "train": _of_export("train a model of the catalog", "train"),
        "tune": _of_export("time an artifact on this machine", "tune"),
        "show": _of_export("print the report of an artifact", "show"),
        "profile": _of_export("print what a forward's time goes to", "profile"),
        "compare": _of_export("time eager and compiled functions", "compare"),
    },
    "serve them": {
        "serve": Program(
            "serve a repository of artifacts over HTTP",
            "app.__main__",
            parsed_in="app.command_line",
            parser_helps=True,
        ),
        "score": Program(
            "score files, without a server",
            "app.bulk.__main__",
            parsed_in="app.bulk.command",
        ),
        "load": Program("measure a server's capacity", "loadtests.__main__"),
    },
    "protect them": {
        "keys": Program("create an API key", "app.access.__main__"),
        "keygen": _of_export("create keys for signing artifacts", "keygen"),
        "sign": _of_export("sign an artifact", "sign"),
    },
    "get help": {
        "doctor": Program(
            "print what a bug report needs",
            "app.doctor",
            parsed_in="app.doctor_options",
            parser_helps=True,
        ),
        "completion": Program("let bash or zsh complete commands", "torchlane.completion"),
    },
}
PROGRAMS = {name: each for group in GROUPS.values() for name, each in group.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code if it does not exit itself."""
    try:
        try:
            return _answer(sys.argv[1:] if arguments is None else arguments)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:  # while a program is imported, which takes seconds
        return _refuse("interrupted", INTERRUPTED_EXIT_CODE)
    except BrokenPipeError:
        if not _is_unread():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it again
        return UNREAD_EXIT_CODE


def _is_unread() -> bool:
    """Whether the reader of standard output has left, as `head` does."""
    if sys.stdout is None:
        return False
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return bool(output.poll(0))


def _answer(arguments: Sequence[str]) -> int:
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", ())
    if name in ("--help", "-h", "help"):
        sys.stdout.write(_help())
        return 0
    if name in ("--version", "-V"):
        sys.stdout.write(f"torchlane {torchlane.__version__}\n")
        return 0
    program = PROGRAMS.get(name)
    if program is None:
        if name.startswith("-"):
            return _refuse(f"{name} comes after a command, as in `torchlane serve --port 9000`")
        hint = did_you_mean(
            name, PROGRAMS, "torchlane --help lists all", show="`torchlane {}`".format
        )
        return _refuse(f"{name!r} is not a command; {hint}")
    try:
        find_spec(program.module)
    except ModuleNotFoundError as error:  # images have only the packages that they run
        return _refuse(f"this installation has no `{name}`: the package {error.name} is not in it")
    _run(program, rest)
    return 0


def _run(program: Program, arguments: Sequence[str]) -> None:
    if program.parser_helps and not {"--help", "-h"}.isdisjoint(arguments):
        program.parser().print_help()
        return
    sys.argv[1:] = [*program.arguments, *arguments]
    # As `python -m` does: servers find by the main module how to start more processes.
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)


def _help() -> str:
    return "\n".join(_help_lines())


def _help_lines() -> Iterator[str]:
    yield "usage: torchlane COMMAND [ARGUMENT ...]"
    for title, programs in GROUPS.items():
        yield f"\n{title}:"
        yield from (f"  {name:<12}{each.help}" for name, each in programs.items())
    yield "\n`torchlane COMMAND --help` explains a command; `torchlane --version`: the version\n"


def _refuse(problem: str, exit_code: int = USAGE_EXIT_CODE) -> int:
    sys.stderr.write(f"torchlane: {problem}\n")
    return exit_code
