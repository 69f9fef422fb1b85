"""Time small functions as an eager loop, batched, scripted and compiled, with published ratios.

There are two functions: all squared distances of a[100,2] and b[200,2], and ten squarings of a
vector of five. The results of all forms are compared before any is timed.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from rich import box
from rich.console import Console
from rich.table import Table

from export.errors import ParityError, reason
from export.variants.base import NotApplicable
from export.variants.compiled import find_compiler
from models.processor import this_cpu
from models.runtimes.base import VariantFile
from models.runtimes.forms import intra_op_threads
from models.runtimes.packages import load_package
from models.timing import time_interleaved

LOOP, BATCHED, SCRIPTED, COMPILED = "eager loop", "batched eager", "scripted", "compiled"
WHY_RATIOS_DIFFER = (
    "The published figures come from another machine and another torch. A ratio compares the cost "
    "of calling small operations with the arithmetic in them, and that differs with the "
    "processor, with torch's cost of a call, and with what its build can fuse: wheels of torch "
    "have no LLVM, so that TorchScript fuses nothing on the CPU."
)
Function = Callable[..., torch.Tensor]


class FunctionCase(NamedTuple):
    """One function written in two ways that give the same answer; `batched` can be compiled."""

    title: str
    loop: Function
    batched: Function
    inputs: tuple[torch.Tensor, ...]
    published: str


def distances_loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Squared distances [p, q] of a [p, 2] and b [q, 2], one pair at a time."""
    return torch.stack([torch.stack([(x - y).square().sum() for y in b]) for x in a])


def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Squared distances [p, q] of a [p, 2] and b [q, 2], all pairs at once."""
    return (a.unsqueeze(1) - b.unsqueeze(0)).square().sum(dim=2)


def squarings(x: torch.Tensor) -> torch.Tensor:
    """Ten squarings of x [n], one after the other: all can be fused."""
    for _ in range(10):
        x = x * x
    return x


def squarings_loop(x: torch.Tensor) -> torch.Tensor:
    """Ten squarings of x [n], one element at a time."""
    return torch.stack([squarings(each) for each in x])


def cases(rows: int = 100, columns: int = 200) -> tuple[FunctionCase, ...]:
    """Return the functions with inputs of these sizes; published times are for the defaults."""
    points = torch.rand(rows, 2), torch.rand(columns, 2)
    near_one = torch.linspace(0.995, 1.005, 5)  # its power of 1024 is neither 0 nor infinite
    pairs = f"pairwise: all squared distances of a[{rows},2], b[{columns},2]"
    batching, scripting = "batching: 438 ms -> 322 us", "scripting: 18.5 us -> 4.41 us, 4.20x"
    return (
        FunctionCase(pairs, distances_loop, distances, points, batching),
        FunctionCase(
            "chain: ten squarings of 5", squarings_loop, squarings, (near_one,), scripting
        ),
    )


def run(args: argparse.Namespace, console: Console) -> None:
    """Compare and print, as the options say; see `compare`."""
    with intra_op_threads(args.threads), torch.inference_mode():
        console.print(f"{this_cpu(args.threads)}, torch {torch.__version__}", highlight=False)
        for case in cases():
            compare(case, console, args.rounds)
        console.print(f"\n{WHY_RATIOS_DIFFER}", highlight=False)


def compare(case: FunctionCase, console: Console, rounds: int) -> None:
    """Print a table of the forms; ParityError: two of them give different answers."""
    console.print(f"\n{case.title}; published: {case.published}", highlight=False)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch.jit, and the compiler's about its own code
        script: Function = torch.jit.script(case.batched)
        forms = {LOOP: case.loop, BATCHED: case.batched, SCRIPTED: script}
        try:
            forms[COMPILED] = compile_batched(case, Path(folder) / "compiled.pt2")
        except NotApplicable as why:
            console.print(f"{COMPILED}: left out: {why}", highlight=False, markup=False)
        check(case, forms)
        calls = {name: partial(form, *case.inputs) for name, form in forms.items()}
        times = time_interleaved(calls, rounds)
    table = Table("form", "median us", "over the loop", "over batched", box=box.SIMPLE_HEAD)
    median = {name: statistics.median(seconds) for name, seconds in times.items()}
    for name, median_s in median.items():
        ratios = (f"{median[other] / median_s:,.2f}x" for other in (LOOP, BATCHED))
        table.add_row(name, f"{median_s * 1e6:,.2f}", *ratios)
    console.print(table)


def compile_batched(case: FunctionCase, package: Path) -> Function:
    """Compile the batched form as in an artifact; NotApplicable: there is no C++ compiler."""
    find_compiler()
    from torch._inductor import aoti_compile_and_package  # noqa: PLC0415 - slow

    module = torch.nn.Module()
    module.forward = case.batched
    try:
        program = torch.export.export(module, case.inputs)
        aoti_compile_and_package(program, package_path=str(package))
    except Exception as error:  # torch.export and its compiler raise many classes
        raise NotApplicable(f"torch.export or AOTInductor failed: {reason(error)}") from error
    call = load_package(VariantFile.of(package.read_bytes()), torch.device("cpu"))
    return lambda *inputs: call(list(inputs))[0]


def check(case: FunctionCase, forms: Mapping[str, Function]) -> None:
    """Compare the answers of all forms with the loop's, up to rounding."""
    expected = case.loop(*case.inputs)
    for name, form in forms.items():
        answer = form(*case.inputs)
        if answer.shape != expected.shape or not torch.allclose(answer, expected, rtol=1e-4):
            raise ParityError(f"{case.title}: {name} and {LOOP} give different answers")
