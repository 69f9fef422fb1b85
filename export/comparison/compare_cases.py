"""The functions that `compare` times, their forms, and the timing."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from export.errors import ParityError, reason
from export.variants.base import NotApplicable
from export.variants.compiled import find_compiler
from models.packages import load_package
from models.runtimes import File
from models.timing import time_interleaved

LOOP, BATCHED, SCRIPTED, COMPILED = "eager loop", "batched eager", "scripted", "compiled"


@dataclass(frozen=True, slots=True)
class Published:
    """The published times of one step, in seconds before and after it."""

    step: str
    before_s: float
    after_s: float


@dataclass(frozen=True, slots=True)
class Case:
    """One function written in two ways that give the same answer.

    Attributes:
        title: what it computes.
        loop: with a Python loop over single items.
        batched: the same with one call per operation; can be scripted and compiled.
        inputs: for both.
        published: times measured elsewhere.
    """

    title: str
    loop: Callable[..., torch.Tensor]
    batched: Callable[..., torch.Tensor]
    inputs: tuple[torch.Tensor, ...]
    published: Published


def distances_loop(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Squared distances [p, q] of a [p, 2] and b [q, 2], one pair at a time."""
    out = torch.empty(a.shape[0], b.shape[0])
    for i in range(a.shape[0]):
        for j in range(b.shape[0]):
            difference = a[i] - b[j]
            out[i, j] = (difference * difference).sum()
    return out


def distances(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Squared distances [p, q] of a [p, 2] and b [q, 2], all pairs at once."""
    difference = a.unsqueeze(1) - b.unsqueeze(0)  # [p, q, 2]
    return (difference * difference).sum(dim=2)


def squarings(x: torch.Tensor) -> torch.Tensor:
    """Ten squarings of x [n], one after the other: all can be fused."""
    for _ in range(10):
        x = x * x
    return x


def squarings_loop(x: torch.Tensor) -> torch.Tensor:
    """Ten squarings of x [n], one element at a time."""
    return torch.stack([squarings(each) for each in x])


def cases(rows: int = 100, columns: int = 200, length: int = 5) -> tuple[Case, ...]:
    """Return the two functions with inputs of these sizes; published times are for the defaults."""
    generator = torch.Generator().manual_seed(0)
    points = [torch.rand(count, 2, generator=generator) for count in (rows, columns)]
    near_one = torch.linspace(0.995, 1.005, length)  # its power of 1024 is neither 0 nor infinite
    return (
        Case(
            f"pairwise: all squared distances of a[{rows},2], b[{columns},2]",
            distances_loop,
            distances,
            tuple(points),
            Published("batching", before_s=438e-3, after_s=322e-6),
        ),
        Case(
            f"chain: ten squarings of a vector of {length}",
            squarings_loop,
            squarings,
            (near_one,),
            Published("scripting", before_s=18.5e-6, after_s=4.41e-6),
        ),
    )


def compiled(case: Case, package: Path) -> Callable[..., torch.Tensor]:
    """Compile the batched form to a package, as in an artifact.

    Raises:
        NotApplicable: without a C++ compiler, or if it fails.
    """
    find_compiler()
    from torch._inductor import aoti_compile_and_package  # noqa: PLC0415 - slow

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the compiler's warnings about its own code
            program = torch.export.export(_Module(case.batched), case.inputs)
            aoti_compile_and_package(program, package_path=str(package))
    except Exception as error:  # torch.export and its compiler raise many classes
        raise NotApplicable(f"torch.export or AOTInductor failed: {reason(error)}") from error
    call = load_package(File.of(package.read_bytes()), torch.device("cpu"))

    def forward(*inputs: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = call(list(inputs))[0]
        return made

    return forward


def agree(case: Case, forms: Mapping[str, Callable[..., torch.Tensor]]) -> float:
    """Return the largest absolute difference of any form's answer from the loop's.

    Raises:
        ParityError: if one exceeds what rounding explains.
    """
    expected = case.loop(*case.inputs)
    largest = 0.0
    for name, form in forms.items():
        answer = form(*case.inputs)
        if answer.shape != expected.shape or not torch.allclose(answer, expected, rtol=1e-4):
            raise ParityError(f"{case.title}: {name} and {LOOP} give different answers")
        largest = max(largest, float((answer - expected).abs().max()))
    return largest


def timed(
    case: Case, forms: Mapping[str, Callable[..., object]], rounds: int
) -> dict[str, list[float]]:
    """Time one call of each form in seconds, one number per round; all forms in turns."""
    runs = {name: (lambda form=form: form(*case.inputs)) for name, form in forms.items()}
    return time_interleaved(runs, rounds)


class _Module(nn.Module):
    """A function in the form that torch.export accepts."""

    def __init__(self, function: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self._function(*inputs)
