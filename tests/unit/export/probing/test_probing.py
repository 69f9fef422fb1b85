"""Findings from running a model, and what is not claimed."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import nn

from export.errors import UsageError
from export.probing.probing import Findings, Prober
from export.probing.samples import two_shapes
from export.probing.trials import Outcome, Trials
from export.reading.declared import read_inputs
from tests.unit.export.kinds import Graph
from tests.unit.export.torchscripts import inline


@pytest.fixture(autouse=True)
def _no_forward_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Independent of the load on this machine."""
    monkeypatch.setattr("export.probing.trials.SLOW_S", 60.0)


def learned(module: nn.Module, *given: str) -> Findings:
    inputs = read_inputs(given)
    shapes = tuple(dict.fromkeys(two_shapes([each.spec for each in inputs], (3, 5))))
    return Prober(torch.jit.script(module.eval()), inputs, shapes, lambda _: None).learn()


def notes_of(module: nn.Module, *given: str) -> list[str]:
    return [str(each.spec) for each in learned(module, *given).inputs]


class Words(nn.Module):
    """ids, mask [n, s] -> [n, s, 4]: a table of 50, positions up to 40."""

    def __init__(self, positions: int = 40) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(50, 4), nn.Embedding(positions, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        at = self.places(torch.arange(ids.shape[1]))
        output: torch.Tensor = (self.table(ids) + at) * mask.unsqueeze(2)
        return output


class Sources(nn.Module):
    """nodes [b, n, f], edges [b, 2, e] -> [b, f]: the mean over the edges' sources."""

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        places = edges[:, 0, :, None].expand(-1, -1, nodes.shape[2])
        return nodes.gather(1, places).mean(1)


class Column(nn.Module):
    """Each column has its own table."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(50, 4), nn.Embedding(1000, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.users(x[:, 0]) + self.films(x[:, 1])
        return output


class Wrapping(nn.Module):
    """Negative numbers count from the end."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(50.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.table)[x]


class Lengths(nn.Module):
    """x [n, s], lengths [n], at most s."""

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        if bool((lengths > x.shape[1]).any()):
            raise ValueError("longer than it is")
        return x.sum(1) / (1 + lengths)


class Odds(nn.Module):
    """Takes odd sizes only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 2 == 0 or x.shape[1] > 100:
            raise ValueError("no")
        return x


class Greedy(nn.Module):
    """Needs memory that no machine has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if bool(x.max() > 4):
            return x + torch.empty([int(x.max()), 2_000_000_000, 100])[:1, 0, 0]
        return x


class Longer(nn.Module):
    """The second may be shorter than the first."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.shape[1] < b.shape[1]:
            raise ValueError("no")
        return a.sum(1) + b.sum(1)


NODES, EDGES = "nodes=float32[-1,-1,4]", "edges=int64[-1,2,-1]"
PAIRS = (
    "return (a * b).sum(1) + (c * d).sum(1)",
    "Tensor",
    "a: Tensor, b: Tensor, c: Tensor, d: Tensor",
)


@pytest.mark.parametrize(
    ("module", "declared", "bounds"),
    [
        (Words(), "ids=int64[-1,-1]; mask=float32[-1,-1]", "n<=40] in 0..49; n<=40]"),
        (Words(3000), "ids=int64[-1,seq]; mask=int64[-1,-1]", "seq<=3000] in 0..49; seq<=3000]"),
        (Words(), "int32[-1,4] in ..; bool[-1,4]", "int32[-1,4]; bool[-1,4]"),
        (Column(), "x=int64[-1,2]", "2] in 0.."),
        (Wrapping(), "x=int64[-1,2]", "2] in -50..49"),
        (Graph(), f"{NODES}; {EDGES}", "1<=n<=1024,4]; 2,-1] in 0..<n"),
        (Graph(), f"nodes=float32[-1,5,4]; {EDGES}", "5,4]; 2,-1] in 0..4"),
        (Lengths(), "x=float32[-1,-1]; lengths=int64[-1]", "-1]; lengths=int64[-1]"),
        (Odds(), "float32[-1,-1]", "float32[-1,-1]"),
        (inline("return x + x.transpose(1, 2)"), "float32[-1,-1,-1]", "n<=1024,n<=1024]"),
        (Greedy(), "int64[-1]", "input=int64[-1]"),
        (
            inline("return a.sum(1) + b.sum(1)", arguments="a: Tensor, b: Tensor"),
            "a=float32[-1,-1]; b=int64[-1,-1]",
            "-1]; -1]",
        ),
        (inline("return x.std(1)"), "float32[-1,-1]", "2<=-1<=1024]"),
        (Longer(), "a=float32[-1,-1]; b=float32[-1,-1]", None),
        (
            inline(*PAIRS),
            "a=float32[-1,-1]; b=float32[-1,-1]; c=float32[-1,n]; d=float32[-1,-1]",
            "m<=1024]; m<=1024]; n<=1024]; n<=1024]",
        ),
    ],
)
def test_only_observed_failures_become_bounds(
    module: nn.Module, declared: str, bounds: str | None
) -> None:
    lines = notes_of(module, *declared.split("; "))
    if bounds is None:  # nothing that holds for both
        assert not any(name in "".join(lines) for name in ("n<=", "m<="))
        return
    for line, bound in zip(lines, bounds.split("; "), strict=True):
        assert re.search(rf"(^|[,=]){re.escape(bound)}$", line)


EQUAL = (
    "axis 0 of 'ids' and axis 0 of 'mask' must be equal (3 next to 5 fails): they are now called "
    "'n'. 1 next to 3 runs; if that is intended, give them different names"
)


def test_each_finding_has_a_note() -> None:
    notes = learned(Words(), "ids=int64[-1,-1]", "mask=float32[-1,-1]").notes
    assert notes == (
        EQUAL,
        "'n' is at most 40: 41 fails (index out of range in self)",
        "the numbers of 'ids' are at least 0: -1 fails (index out of range in self)",
        "the numbers of 'ids' are at most 49: 50 fails (index out of range in self)",
    )


OUTSIDE = "is out of bounds for dimension 0 with size 3"


def test_index_into_another_item_is_a_failure() -> None:
    findings = learned(Graph(), "nodes=float32[-1,n,4]", "edges=int64[-1,2,3]")
    assert findings.notes[-2:] == (
        f"the numbers of 'edges' are at least 0: -1 fails (index -1 {OUTSIDE})",
        f"the numbers of 'edges' are less than 'n': if that is 3, 3 fails (index 3 {OUTSIDE})",
    )
    source = np.array([[[-1, 0, 0], [0, 0, 0]]])  # alone, it counts from the end
    inputs, shapes = [each.spec for each in findings.inputs], ((3, 4), (2, 3))
    trials = Trials(torch.jit.script(Graph()))
    assert trials.run(inputs, shapes, {"edges": source}) is Outcome.WORKS
    assert trials.run_among_others(inputs, shapes, {"edges": source}) is Outcome.FAILS
    assert trials.failure == "the answer then depends on the other items of a batch"


def test_declared_size_must_be_the_one_that_limits_numbers() -> None:
    options = ["nodes=float32[-1,1<=n<=9,4]", "edges=int64[-1,2,e<=9] in 0..<n"]
    assert notes_of(Graph(), *options) == options
    with pytest.raises(UsageError, match="4 in 'edges' is allowed where 'e' is 5, but the model"):
        learned(Graph(), options[0], "edges=int64[-1,2,e<=9] in 0..<e")


@pytest.mark.parametrize(
    ("module", "start"),
    [
        (Graph(), "9 in 'edges' is allowed, but the model fails on it"),
        (Sources(), "0..9 is allowed in 'edges', but the model fails on such numbers"),
    ],
)
def test_a_declared_range_that_should_be_a_size(module: nn.Module, start: str) -> None:
    with pytest.raises(UsageError, match=f"^--input: {re.escape(start)}") as excinfo:
        learned(module, "nodes=float32[-1,1<=n<=9,4]", "edges=int64[-1,2,e<=9] in 0..9")
    assert str(excinfo.value).endswith("; if they are indices into 'n', write 0..<n")


class Embedded(nn.Module):
    """ids [n, s] -> [n]."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.table(ids).sum(1)
        return output


def test_a_search_that_is_given_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.probing.trials.SLOW_S", 0.0)
    findings = learned(Embedded(), "ids=int64[-1,-1]")
    assert [str(each.spec) for each in findings.inputs] == ["ids=int64[-1,-1] in 0.."]
    size, largest, least = findings.notes
    assert re.fullmatch(
        r"axis 0 of 'ids': larger sizes than 8 were not tried, because it takes 0\.\d s; up to "
        "1024 are accepted: give the largest with --input, such as n<=8",
        size,
    )
    assert re.fullmatch(
        r"the largest number of 'ids' was not looked for, because a forward takes 0\.\d s; all "
        r"are accepted: give it with --input, such as in 0\.\.30521",
        largest,
    )
    assert least.startswith("the numbers of 'ids' are at least 0: -1 fails")


def test_a_size_that_takes_too_much_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("export.probing.trials.MAX_SAMPLE_BYTES", 4 * 4 * 200)
    (note,) = learned(inline("return x.sum(1)"), "x=float32[-1,-1,4]").notes
    assert "larger sizes than 256 were not tried, because it takes too much memory; up to" in note
    monkeypatch.setattr("export.probing.trials.MAX_SAMPLE_BYTES", 4 * 4 * 2000)
    assert not learned(inline("return x.sum(1)"), "x=float32[-1,-1,4]").notes


class Masked(nn.Module):
    """x, mask [n, s] -> [n]: the mean over the mask."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return (x * mask).sum(1) / mask.sum(1)


@pytest.mark.parametrize("dtype", ["bool", "int64", "int8"])
def test_a_mask_may_have_one_place_but_not_only_zeros(dtype: str) -> None:
    """The mask that is drawn for one place is 0."""
    findings = learned(Masked(), "x=float32[-1,n]", f"mask={dtype}[-1,n]")
    assert str(findings.inputs[0].spec) == "x=float32[-1,1<=n<=1024]"
    assert findings.notes[-1] == (
        "the model returns NaN or infinity where all of 'mask' is 0: such requests fail with 500. "
        "If it is a mask, --pad n=mask lets the server reject them with 422"
    )


@pytest.mark.parametrize(
    ("module", "mask"),
    [
        (inline("return x * mask", arguments="x: Tensor, mask: Tensor"), "mask=bool[-1,n]"),
        (Masked(), "mask=int64[-1,n] in 1..2"),
    ],
)
def test_zeros_that_are_taken_or_excluded_need_no_note(module: nn.Module, mask: str) -> None:
    assert not any("where all" in each for each in learned(module, "x=float32[-1,n]", mask).notes)


def test_a_mask_of_padding_needs_no_note() -> None:
    inputs = read_inputs(["x=float32[-1,n]", "mask=int64[-1,n]"], ["n=mask"])
    shapes = tuple(dict.fromkeys(two_shapes([each.spec for each in inputs], (3, 5))))
    findings = Prober(torch.jit.script(Masked()), inputs, shapes, lambda _: None).learn()
    assert not any("where all" in each for each in findings.notes)


def test_different_names_stay_separate_with_a_note() -> None:
    findings = learned(Words(), "ids=int64[-1,a]", "mask=float32[-1,b]")
    assert [str(each.spec) for each in findings.inputs][1] == "mask=float32[-1,b<=1024]"
    assert "'a' and 'b' fail whenever their sizes differ" in findings.notes[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ids=int64[-1,seq<=512]", "float32[-1,seq]"], "size 512 of 'seq' is allowed, but the"),
        (["ids=int64[-1,seq] in 0..299", "float32[-1,seq]"], "299 in 'ids' is allowed, but the"),
        (["ids=int64[-1,seq] in -7..49", "float32[-1,seq]"], "-7 in 'ids' is allowed, but the"),
    ],
)
def test_declared_bounds_are_checked(arguments: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=f"^--input: {re.escape(message)}") as excinfo:
        learned(Words(), *arguments)
    assert re.search(r"; it works as far as (40|49|0)$", str(excinfo.value))


def test_working_declarations_are_kept() -> None:
    options = ["ids=int64[-1,2<=seq<=16] in 3..20", "mask=float32[-1,2<=seq<=16]"]
    assert notes_of(Words(), *options) == options
    assert notes_of(Column(), "x=int64[-1,2] in 0..999") == ["x=int64[-1,2] in 0..999"]
