"""The command line: `python -m export MODEL --out artifacts`."""

from __future__ import annotations

import argparse
import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from export.errors import ExportError, UsageError
from export.pipeline import Job, Stage, export
from export.report import table_of
from models.definitions.definition import Definition

EPILOG = """\
exit codes: 0 the artifact is there; 1 the export failed and left nothing; 2 the command is wrong.

example: python -m export digits --out artifacts
"""


def main(
    arguments: Sequence[str], catalog: Mapping[str, Definition], console: Console | None = None
) -> int:
    """Run the export that the arguments ask for.

    Args:
        arguments: without the program's name.
        catalog: name -> definition of everything that can be built.
        console: where to write; errors go to stderr.

    Returns:
        the exit code: 0 done, 1 failed, 2 wrong usage.
    """
    console = console or Console()
    try:
        job = _parse(arguments, catalog)
        with _progress(console) as stage, warnings.catch_warnings():
            # TorchScript is the format we make; torch 2.13 announces its deprecation at every call.
            warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
            made = export(job, stage)
    except ExportError as error:
        Console(stderr=True, soft_wrap=True).print(f"export: {escape(str(error))}", highlight=False)
        return 2 if isinstance(error, UsageError) else 1
    console.print(table_of(made.manifest, made.folder))
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (--help explains every option)")


def _parse(arguments: Sequence[str], catalog: Mapping[str, Definition]) -> Job:
    parser = _Parser(
        prog="python -m export",
        description="Make a verified, self-describing artifact of a model.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    known = "; ".join(f"{name}: {item.description}" for name, item in catalog.items())
    parser.add_argument("model", help=f"what to export. {known.replace('%', '%%')}")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("artifacts"),
        metavar="FOLDER",
        help="the repository to write to: FOLDER/MODEL/VERSION (default: artifacts)",
    )
    parser.add_argument(
        "--method",
        choices=("script", "trace"),
        default="script",
        help="script keeps control flow; trace records one run, for models that cannot be scripted"
        " (default: script)",
    )
    parser.add_argument(
        "--version",
        type=int,
        metavar="N",
        help="the version number to write (default: one more than the highest there is)",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="load a state_dict that torch.save wrote instead of training",
    )
    parsed = parser.parse_args(arguments)
    if parsed.model not in catalog:
        raise UsageError(f"unknown model {parsed.model!r}; there are: {', '.join(sorted(catalog))}")
    return Job(
        model=parsed.model,
        definition=catalog[parsed.model],
        out=parsed.out,
        method=parsed.method,
        version=parsed.version,
        weights=parsed.weights,
    )


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Stage]:
    columns = (
        TextColumn("{task.description:<10}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=console) as bars:

        def stage(name: str) -> _Bar:
            return _Bar(bars, name)

        yield stage


class _Bar:
    """A line of the progress display; satisfies `models.definitions.definition.Progress`."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars = bars
        self._task = bars.add_task(name, total=None, note="")

    def __call__(self, done: int, total: int, note: str) -> None:
        self._bars.update(self._task, completed=done, total=total, note=note)
