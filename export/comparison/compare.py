"""Time small functions as an eager loop, batched, scripted and compiled, with published ratios.

There are two functions: all squared distances of a[100,2] and b[200,2], and ten squarings of a
vector of five. The results of all forms are compared before any is timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from export.comparison import fusion
from export.comparison.compare_cases import (
    BATCHED,
    COMPILED,
    LOOP,
    SCRIPTED,
    Case,
    Published,
    agree,
    cases,
    compiled,
    timed,
)
from export.timing.timings import three_digits
from export.variants.base import NotApplicable
from models.forms import intra_op_threads
from models.processor import this_cpu

ROUNDS = 21
WHY_RATIOS_DIFFER = (
    "The published figures come from another machine and another torch. A ratio compares the cost "
    "of calling small operations with the arithmetic in them, and that differs with the "
    "processor, with torch's cost of a call, and with what its build can fuse."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `python -m export compare`."""
    parser.add_argument(
        "--rounds",
        type=_positive,
        default=ROUNDS,
        metavar="N",
        help=f"time every form N times, in turns (default: {ROUNDS})",
    )
    parser.add_argument(
        "--threads",
        type=_positive,
        default=1,
        metavar="N",
        help="intra-op threads (default: 1)",
    )
    parser.add_argument(
        "--graph",
        action="store_true",
        help="print the graph of fused operations, and the loops that the compiler generated",
    )


def run(
    parsed: argparse.Namespace, console: Console, compared: Sequence[Case] | None = None
) -> None:
    """Compare and print, as the options say.

    Args:
        parsed: the options of `add_arguments`.
        console: where to print.
        compared: what to compare; None: both `cases`.

    Raises:
        ParityError: if two forms give different answers.
    """
    with intra_op_threads(parsed.threads), torch.inference_mode():
        console.print(f"{this_cpu(parsed.threads)}, torch {torch.__version__}", highlight=False)
        for case in cases() if compared is None else compared:
            compare(case, console, rounds=parsed.rounds, graph=parsed.graph)
        console.print(f"\n{WHY_RATIOS_DIFFER}", highlight=False)
        if not fusion.HAS_LLVM:
            console.print(fusion.WITHOUT_LLVM, highlight=False)


def compare(case: Case, console: Console, *, rounds: int, graph: bool) -> None:
    """Build the forms of a case, compare their answers, time them, and print the times.

    Without a C++ compiler one line reports that, and the other forms are compared.

    Raises:
        ParityError: if two forms give different answers.
    """
    console.print(f"\n{case.title}", style="bold", highlight=False)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`torch.jit.*is deprecated")
        forms: dict[str, Callable[..., Any]] = {
            LOOP: case.loop,
            BATCHED: case.batched,
            SCRIPTED: torch.jit.script(case.batched),
        }
        package = Path(folder) / "compiled.pt2"
        try:
            with console.status("compiling"):
                forms[COMPILED] = compiled(case, package)
        except NotApplicable as why:
            console.print(f"{COMPILED}: left out: {why}", highlight=False, markup=False)
        console.print(f"largest difference between the answers: {agree(case, forms):.1e}")
        times = timed(case, forms, rounds)
        console.print(_times_table(times))
        console.print(_ratios_table(case.published, times))
        if graph:
            _print_graph(case, package, console)


def _times_table(times: Mapping[str, Sequence[float]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("form")
    for title in ("median", "middle half of the rounds", "against the loop"):
        table.add_column(title, justify="right")
    loop = statistics.median(times[LOOP])
    for name, taken in times.items():
        ordered = sorted(taken)
        low, high = (ordered[round(share * (len(ordered) - 1))] for share in (0.25, 0.75))
        median = statistics.median(taken)
        spread = f"{duration(low)} - {duration(high)}"
        table.add_row(name, duration(median), spread, _times(loop / median))
    return table


def _ratios_table(published: Published, times: Mapping[str, Sequence[float]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("step", "here", "published"):
        table.add_column(title, overflow="fold")
    steps = {"batching": (LOOP, BATCHED), "scripting": (BATCHED, SCRIPTED)}
    if COMPILED in times:
        steps["compiling"] = (BATCHED, COMPILED)
    for step, (before, after) in steps.items():
        here = _ratio(statistics.median(times[before]), statistics.median(times[after]))
        there = _ratio(published.before_s, published.after_s) if step == published.step else "-"
        table.add_row(f"{step}\n{before} -> {after}", here, there)
    return table


def _ratio(before: float, after: float) -> str:
    return f"{duration(before)} -> {duration(after)}\n{_times(before / after)}"


def _times(ratio: float) -> str:
    return f"{three_digits(ratio)}x"


def duration(seconds: float) -> str:
    """Format as three digits and a unit: 438 ms, 322 us, 4.41 us."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "us")):
        if seconds * factor >= 1:
            return f"{three_digits(seconds * factor)} {unit}"
    return f"{three_digits(seconds * 1e9)} ns"


def _print_graph(case: Case, package: Path, console: Console) -> None:
    def show(title: str, text: str) -> None:
        console.print(f"\n{title}", style="bold", highlight=False)
        console.print(Text(text), soft_wrap=True)

    ran = fusion.executed(case.batched, case.inputs)
    show(f"What TorchScript executes here: {_groups(ran.groups)}", ran.graph)
    if not ran.groups:
        would = fusion.fusible(case.batched, case.inputs)
        show(f"What its fuser combines where it has LLVM: {_groups(would.groups)}", would.graph)
    if package.exists():
        show(
            "What the compiler generated: one loop where operations were fused",
            fusion.kernels(package),
        )


def _groups(count: int) -> str:
    return f"{count or 'no'} fused group{'' if count == 1 else 's'}"


def _positive(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {text!r}")
    return value
