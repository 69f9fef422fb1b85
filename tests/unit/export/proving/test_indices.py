"""A number must not be an index into another item of the batch."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from export.errors import ParityError
from export.probing.samples import Samples
from export.proving.reference import reference_of
from export.reading.declared import read_inputs
from models.codec_specs import TensorCodecSpec
from models.definitions.definition import Definition
from models.tensors import TensorSpec
from tests.unit.export.definitions import quiet
from tests.unit.export.kinds import Graph

SHAPES = ((5, 4), (2, 3))
NODES = "nodes=float32[-1,n,4]"


def prove(eager: Callable[..., object], edges: str, max_batch: int = 4) -> None:
    inputs = tuple(each.spec for each in read_inputs([NODES, edges]))
    samples = Samples(inputs, TensorCodecSpec(), (SHAPES,))
    definition = Definition(
        description="",
        inputs=inputs,
        outputs=(TensorSpec(name="y", dtype="float32", shape=(-1, -1, 4)),),
        codec=TensorCodecSpec(),
        build=Graph,
        train=None,
        random_inputs=samples.random_inputs,
        golden_inputs=samples.golden_inputs,
        example=samples.example,
    )
    reference_of(eager, definition, max_batch, quiet)


class Wrapping(Graph):
    """Takes nodes modulo the number of all nodes."""

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        b, n, _ = nodes.shape
        start = n * torch.arange(b)[:, None, None]
        return super().forward(nodes, (edges + start) % (b * n) - start)


class Lenient(Graph):
    """Takes nodes modulo its own."""

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return super().forward(nodes, edges % nodes.shape[1])


@pytest.mark.parametrize(
    ("eager", "range_", "message"),
    [
        (Graph(), "", "the number 5 in 'edges' fails alone but is answered in a batch"),
        (Graph(), " in 0..", "the number 5 in 'edges' fails alone but is answered in a batch"),
        (Graph(), " in ..<n", "the number -1 in 'edges' fails alone but is answered in a batch"),
        (Wrapping(), " in 0..", "the number 5 in 'edges' is answered differently in a batch"),
    ],
)
def test_range_beyond_an_item_is_refused(eager: Graph, range_: str, message: str) -> None:
    with pytest.raises(ParityError, match=re.escape(message)) as excinfo:
        prove(eager, f"edges=int64[-1,2,e]{range_}")
    assert "such as --input 'edges=int64[-1,2,e<=1024] in 0..<n'" in str(excinfo.value)


def test_numbers_of_the_own_item_are_proved() -> None:
    prove(Graph(), "edges=int64[-1,2,e] in 0..<n")
    prove(Graph(), "edges=int64[-1,2,e] in 0..4")
    prove(Lenient(), "edges=int64[-1,2,e]")


def test_batch_of_one_has_no_other_item() -> None:
    prove(Graph(), "edges=int64[-1,2,e]", max_batch=1)
