"""The command `torchlane`: starts the program of a command, which imports what it needs.

`torchlane serve --port 9000` is `python -m app --port 9000`. This module imports hardly
more than the standard library, so that an answer to `torchlane --help` takes no longer than
Python's own start.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import NamedTuple

import torchlane
from models.choices import did_you_mean

USAGE_EXIT_CODE = 2


class Program(NamedTuple):
    """A command's program.

    Attributes:
        module: run as the main module.
        arguments: put before the caller's.
        help: what the command does, in a few words.
    """

    module: str
    arguments: tuple[str, ...]
    help: str


GROUPS: Mapping[str, Mapping[str, Program]] = {
    "make artifacts": {
        "export": Program("export.__main__", (), "export a model of the catalog"),
        "adopt": Program("export.__main__", ("adopt",), "export a model that exists as a file"),
        "train": Program("export.__main__", ("train",), "train a model of the catalog"),
        "tune": Program("export.__main__", ("tune",), "time an artifact on this machine"),
        "show": Program("export.__main__", ("show",), "print the report of an artifact"),
        "profile": Program("export.__main__", ("profile",), "print what a forward's time goes to"),
        "compare": Program("export.__main__", ("compare",), "time eager and compiled functions"),
    },
    "serve them": {
        "serve": Program("app.__main__", (), "serve a repository of artifacts over HTTP"),
        "score": Program("app.bulk.__main__", (), "score files, without a server"),
        "load": Program("loadtests.__main__", (), "measure a server's capacity"),
    },
    "protect them": {
        "keys": Program("app.access.__main__", (), "create an API key"),
        "keygen": Program("export.__main__", ("keygen",), "create keys for signing artifacts"),
        "sign": Program("export.__main__", ("sign",), "sign an artifact"),
    },
    "get help": {
        "doctor": Program("app.doctor", (), "print what a bug report needs"),
        "completion": Program("torchlane.completion", (), "let bash or zsh complete commands"),
    },
}
PROGRAMS = {name: each for group in GROUPS.values() for name, each in group.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code if it is wrong, else the command exits itself."""
    arguments = sys.argv[1:] if arguments is None else arguments
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
    sys.argv[1:] = [*program.arguments, *rest]
    # As `python -m` does: servers find by the main module how to start more processes.
    runpy.run_module(program.module, run_name="__main__", alter_sys=True)
    return 0


def _help() -> str:
    return "\n".join(_help_lines())


def _help_lines() -> Iterator[str]:
    yield "usage: torchlane COMMAND [ARGUMENT ...]"
    for title, programs in GROUPS.items():
        yield f"\n{title}:"
        yield from (f"  {name:<12}{each.help}" for name, each in programs.items())
    yield "\n`torchlane COMMAND --help` explains a command; `torchlane --version`: the version\n"


def _refuse(problem: str) -> int:
    sys.stderr.write(f"torchlane: {problem}\n")
    return USAGE_EXIT_CODE
