"""What nodes of a cluster run gives what a run here gives; a node without the model says so."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from app.bulk.blocks import BlockBounds
from app.bulk.columns import Chooser
from app.bulk.decoding import Recipe
from app.bulk.errors import BulkError
from app.bulk.inputs import find_inputs
from app.bulk.model import BulkModel, Choices, steps_of
from app.bulk.nodes import (
    FIRST,
    STOP,
    TO_THE_END,
    Facts,
    Order,
    ScoringActor,
    find_out,
    read,
    unpack,
)
from app.bulk.sources.choose import open_source
from app.registry.model_settings import ModelSettings
from app.registry.repository import Artifact, Repository
from app.types import ModelId
from tests.artifacts import write_artifact
from tests.unit.app.bulk.conftest import Bulk

ROWS, PER_SHARD = 300, 100
CHOICES = Choices("cpu", 1, 1, ModelSettings())


def opened(repository: Path) -> Artifact:
    return Repository(repository).open(ModelId("double", 1))


def order(repository: Path, digest: str = "") -> Order:
    artifact = opened(repository)
    return Order((Path("none"), repository), artifact.id, digest or artifact.digest, CHOICES)


def piece(first: int, stop: int) -> Any:
    return pa.table({FIRST: [first], STOP: [stop]})


@pytest.mark.parametrize("decode_where_it_is_read", [False, True])
def test_actors_give_the_same_rows_as_a_run(
    bulk: Bulk, repository: Path, decode_where_it_is_read: bool
) -> None:
    values = np.arange(2 * ROWS, dtype=np.float32).reshape(ROWS, 2) / 4  # above 100: an error
    np.save("in.npy", values)
    assert bulk("double", "in.npy", "--rows-per-shard", PER_SHARD) == 0
    (model, cut) = (BulkModel(opened(repository), CHOICES), BlockBounds(64, PER_SHARD))
    chooser = Chooser(model.manifest)
    source, wanted = open_source(find_inputs(["in.npy"]), chooser, io.BytesIO())
    recipe = Recipe(model.manifest, model.files, wanted, Path(), source.integer_ids)
    facts = find_out(order(repository))
    assert isinstance(facts, Facts)
    assert (facts.batch, facts.kinds, facts.threads) == (model.batch, ["cpu"], 1)
    steps_of(facts.steps)
    actor = ScoringActor(order(repository), recipe, None, integer_ids=source.integer_ids)
    tables = []
    for first, stop in ((0, PER_SHARD), (PER_SHARD, TO_THE_END)):
        early = recipe if decode_where_it_is_read else None
        for raw in read(piece(first, stop), source, cut, early):
            done = unpack(actor(raw).column(0)[0].as_py())
            assert done.block.arrays is None
            tables.append(done.table)
    parts = [pq.ParquetFile(part).read() for part in sorted(Path("out").glob("part-*"))]
    assert pa.concat_tables(tables).equals(pa.concat_tables(parts))


def test_node_without_the_model_is_reported(repository: Path, tmp_path: Path) -> None:
    elsewhere = Order((tmp_path, tmp_path), ModelId("double", 1), "", CHOICES)
    problem = find_out(elsewhere)
    assert isinstance(problem, BulkError)
    assert "on the node " in str(problem)
    assert "every node needs the driver's model" in str(problem)


def test_node_with_another_model_is_reported(repository: Path, tmp_path: Path) -> None:
    write_artifact(tmp_path, "double", golden=[{"x": np.array([3.0, 4.0], np.float32)}])
    problem = find_out(order(tmp_path, opened(repository).digest))
    assert f"the driver's has {opened(repository).digest}" in str(problem)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_missing_ray_names_the_extra(bulk: Bulk, capsys: pytest.CaptureFixture[str]) -> None:
    assert bulk("double", "in.npy", "--ray", "local") == 2
    assert "pip install 'torchlane[ray]'" in capsys.readouterr().err
