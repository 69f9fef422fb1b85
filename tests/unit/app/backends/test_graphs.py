"""Which batches run as a graph."""

from __future__ import annotations

import pytest
import torch

from app.backends.graphs import Graph, Graphs


def graph(rows: int) -> Graph:
    """One that doubles."""
    given, made = torch.full((rows, 2), 99.0), torch.zeros(rows, 2)

    def replay() -> None:
        made.copy_(2 * given)

    return Graph(rows, [given], [made], replay)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_batch_is_padded_with_its_last_row(rows: int) -> None:
    eight = graph(8)
    batch = torch.arange(2.0 * rows).reshape(rows, 2)
    (made,) = eight.run([batch])
    assert torch.equal(made, 2 * batch)
    assert torch.equal(eight.inputs[0][rows:], batch[-1:].expand(8 - rows, 2))


def test_graph_is_used_only_where_faster() -> None:
    graphs = Graphs()
    one, two, four, eight = (graph(rows) for rows in (1, 2, 4, 8))
    graphs.record(8, plain_s=8.0, graph=eight, graph_s=9.0)  # in any order
    graphs.record(1, plain_s=1.0, graph=one, graph_s=0.2)
    graphs.record(4, plain_s=3.0, graph=four, graph_s=0.9)
    graphs.record(2, plain_s=1.0, graph=two, graph_s=0.3)
    assert [graphs.best(rows) for rows in (1, 2, 4)] == [one, two, four]
    assert graphs.best(3) is four  # filled up it takes 0.9, and two rows without take 1.0
    assert graphs.best(8) is None
    assert graphs.best(7) is None
    assert graphs.best(9) is None  # larger than any


def test_no_graphs_means_no_best_graph() -> None:
    graphs = Graphs()
    assert graphs.best(1) is None
    graphs.record(4, plain_s=1.0)
    assert graphs.knows(4)
    assert not graphs.knows(3)
    assert graphs.best(4) is None
    graphs.clear()
    assert not graphs.knows(4)


def test_graph_output_is_not_overwritten() -> None:
    four = graph(4)
    (first,) = four.run([torch.ones(4, 2)])
    four.run([torch.zeros(4, 2)])
    assert torch.equal(first, torch.full((4, 2), 2.0))
