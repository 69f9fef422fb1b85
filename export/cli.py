"""The command line of export: parses at once, and imports torch only for a correct command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from export.errors import ExportError, UsageError
from export.options import adoption, artifacts, handlers, measuring, signing, training
from models.system.command_lines import INTERRUPTED_EXIT_CODE
from models.system.extras import MissingExtra, check_extra

if TYPE_CHECKING:
    from rich.console import Console

    from models.definitions.definition import Definition

EPILOG = """\
other commands (--help explains each):
  torchlane export handler FILE  export a handler: your own Python around served models
  torchlane train MODEL     train a model as its definition declares, on one or more devices
  torchlane adopt FILE      export TorchScript, ONNX, a TorchServe .mar or a Hugging Face folder
  torchlane tune FOLDER     time an artifact's variants on this machine, as a new version
  torchlane show FOLDER     print the report of an artifact
  torchlane profile FOLDER  print the operators that take the most time; write a trace
  torchlane keygen FILE     create a key pair for signing artifacts
  torchlane sign FOLDER     sign an artifact, for servers that accept only signed ones
  torchlane compare         time eager, batched, scripted and compiled forms of two functions

exit codes: 0 done; 1 failed and left nothing behind; 2 wrong usage.

example: torchlane export digits --out artifacts
"""
EXPORT, HANDLER, TRAIN = "export", "handler", "train"
# Name -> its description, and what adds its arguments.
COMMANDS: dict[str, tuple[str, Callable[[argparse.ArgumentParser], None]]] = {
    TRAIN: (training.DESCRIPTION, training.add_train),
    HANDLER: (handlers.DESCRIPTION, handlers.add_handler),
    "adopt": (adoption.DESCRIPTION, adoption.add_adopt),
    "tune": (
        "Time an artifact's variants on this machine; write the plan as a new version.",
        artifacts.add_tune,
    ),
    "show": ("Print the report of an artifact.", artifacts.add_show),
    "profile": (measuring.PROFILE, measuring.add_profile),
    "keygen": (signing.KEYGEN, signing.add_keygen),
    "sign": (signing.SIGN, signing.add_sign),
    "compare": (measuring.COMPARE, measuring.add_compare),
}
PACKAGES = ("jinja2", "matplotlib", "rich", "sklearn")  # of the extra `export`


def main(
    arguments: Sequence[str], catalog: Mapping[str, Definition], console: Console | None = None
) -> int:
    """Run the command that the arguments name.

    Args:
        arguments: without the program's name.
        catalog: name -> definition of everything that can be built; a definition is loaded only
            when it is built.
        console: where to write; errors go to stderr.

    Returns:
        the exit code: 0 done, 1 failed, 2 wrong usage.
    """
    command = arguments[0] if arguments and arguments[0] in COMMANDS else EXPORT
    try:
        args = _parse(command, arguments, catalog)
        extra = (TRAIN, (*PACKAGES, "lightning")) if command == TRAIN else (EXPORT, PACKAGES)
        check_extra(command, *extra)
        # Not at the top: its imports take seconds.
        from export.commands import run  # noqa: PLC0415

        return run(command, args, catalog, console)
    except (ExportError, MissingExtra) as error:
        sys.stderr.write(f"torchlane: {error}\n")
        return 2 if isinstance(error, UsageError | MissingExtra) else 1
    except KeyboardInterrupt:
        outcome = "nothing was written"
        if command == TRAIN:
            outcome = "--resume continues from the last checkpoint, if there is one"
        sys.stderr.write(f"torchlane: interrupted; {outcome}\n")
        return INTERRUPTED_EXIT_CODE


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help explains every option)")


def parser(command: str = EXPORT, models: Collection[str] = ()) -> argparse.ArgumentParser:
    """The command line of a command.

    Args:
        command: `EXPORT`, or a key of `COMMANDS`.
        models: the names that can be exported, for the help.
    """
    if command == EXPORT:
        top = _Parser(
            prog="torchlane export",
            description="Create a verified, self-describing artifact of a model.",
            epilog=EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        artifacts.add_export(top, models)
        return top
    description, add_arguments = COMMANDS[command]
    prog = f"torchlane export {command}" if command == HANDLER else f"torchlane {command}"
    top = _Parser(prog=prog, description=description)
    add_arguments(top)
    return top


def _parse(command: str, arguments: Sequence[str], models: Collection[str]) -> argparse.Namespace:
    """Parse the arguments of a command.

    Raises:
        UsageError: if they are wrong.
    """
    args = parser(command, models).parse_args(arguments[0 if command == EXPORT else 1 :])
    if "model" in args and args.model not in models:
        others = [each for each in COMMANDS if each != HANDLER]  # which is one of `export`
        raise UsageError(
            f"unknown model {args.model!r}; there are: {', '.join(sorted(models))}"
            + (f"; other commands: torchlane {'|'.join(others)}" if command == EXPORT else "")
        )
    if command == EXPORT and args.checkpoint_key and not args.checkpoint:
        raise UsageError("--checkpoint-key needs --checkpoint FILE")
    return args
