"""The parts of a run, and how those of a model are made."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, TypeAlias

from app.bulk.answers import Answers
from app.bulk.blocks import BlockBounds, RowSource, rows_of_block
from app.bulk.columns import Chooser, list_names
from app.bulk.decoding import Recipe
from app.bulk.driver import BulkJob
from app.bulk.driving import Runner
from app.bulk.errors import UsageError
from app.bulk.inputs import STREAM_FORMAT, Inputs
from app.bulk.loading import decode_blocks
from app.bulk.model import BulkModel
from app.bulk.pipeline import LocalStages, Stages
from app.bulk.sources.choose import folder_of, open_source
from app.codecs.values import misshapen
from app.errors import InvalidInput
from app.registry.repository import Artifact, HandlerArtifact
from models.manifest import Manifest
from models.system.resources import usable_cores

if TYPE_CHECKING:
    from app.bulk.on_ray import ClusterModel

Model: TypeAlias = "BulkModel | ClusterModel"

TABLE_OPTIONS = ("columns", "keep")  # manifests of older runs lack them
OPTIONS = ("top_k", "format", "rows_per_shard", "limit", "input_column", "id_column")


class Parts(NamedTuple):
    """The parts of a run.

    Attributes:
        plan: what must not change until its end.
        job: what it reads and writes.
        stages: from rows to tables.
        schema: of the tables.
        runner: see `Runner`.
    """

    plan: Mapping[str, Any]
    job: BulkJob
    stages: Stages
    schema: Any
    runner: Runner


def of_model(options: argparse.Namespace, inputs: Inputs, model: Model) -> Parts:
    """The parts of a run by a model.

    Raises:
        UsageError: if an option does not fit the model.
        BulkError: if a file cannot be read, or lacks a column.
    """
    if options.top_k is not None:
        try:
            model.codec.check_top_k()
        except InvalidInput as error:
            raise UsageError(f"--top-k: {error}") from error
    vectors = _vectors_of(model.manifest, options.columns or ())
    if vectors and options.input_column is not None:
        raise UsageError("--columns and --input-column: give one of them")
    column_names = options.input_column, options.id_column
    chooser = Chooser(model.manifest, *column_names, vectors, options.keep or ())
    source, choice = open_source(inputs, chooser, stream_of(inputs))
    encoded = _has_files(model, source)
    rows = rows_of_block(model.manifest, model.batch, source.row_bytes, encoded=encoded)
    bounds = BlockBounds(rows, options.rows_per_shard)
    recipe = Recipe(
        *(model.manifest, model.files, choice, folder_of(inputs), source.integer_ids),
        dict(source.extra_columns),
    )
    workers = _workers(options, model, encoded=encoded)
    decode = partial(decode_blocks, recipe=recipe, workers=workers)
    limits = (options.limit, options.format, workers, options.max_errors)
    job = BulkJob(source, decode, bounds, *limits)
    answers = Answers(
        *(model.manifest, model.codec, options.top_k),
        integer_ids=source.integer_ids,
        extra_columns=source.extra_columns,
    )
    stages: Stages
    if isinstance(model, BulkModel):
        stages = LocalStages(model, answers)
    else:
        from app.bulk.on_ray import ClusterStages  # noqa: PLC0415

        stages = ClusterStages(model, source, bounds, job.stop, recipe, options.top_k)
    plan = {
        **plan_of(options, model.artifact, inputs, model.label),
        "batch": model.batch,
        "block_rows": bounds.rows,
        "device": {"kinds": sorted(model.kinds), "threads": model.threads},
    }
    return Parts(plan, job, stages, answers.schema, model)


def _vectors_of(manifest: Manifest, texts: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The columns for inputs, from options such as `x=age,income`.

    Raises:
        UsageError: if an input is not a vector of as many numbers.
    """
    vectors: dict[str, tuple[str, ...]] = {}
    specs = {spec.name: spec for spec in manifest.inputs}
    for text in texts:
        name, _, rest = text.partition("=")
        columns = tuple(column.strip() for column in rest.split(","))
        if not all(columns) or name in vectors:
            raise UsageError(
                f"--columns {text!r}: must be the name of an input, =, and its columns, separated "
                "by commas; once for each input"
            )
        spec = specs.get(name)
        if spec is None or manifest.codec.kind != "tensor":
            there = list_names([*specs]) if manifest.codec.kind == "tensor" else "not numbers"
            raise UsageError(f"--columns {text!r}: the inputs are {there}")
        if not spec.takes((len(columns),)):
            raise UsageError(f"--columns {text!r}: {misshapen(spec, (len(columns),))}")
        vectors[name] = columns
    return vectors


def plan_of(
    options: argparse.Namespace, artifact: Artifact | HandlerArtifact, inputs: Inputs, serves: str
) -> Mapping[str, Any]:
    """What must not change from the beginning of a run to its end, of any model or handler."""
    return {
        "model": {
            "name": artifact.id.name,
            "version": artifact.id.version,
            "digest": artifact.digest,
            "serves": serves,
        },
        "inputs": [asdict(each) for each in inputs.arguments],
        "options": {
            name: getattr(options, name)
            for name in (*OPTIONS, *TABLE_OPTIONS)
            if name in OPTIONS or getattr(options, name) is not None
        },
    }


def stream_of(inputs: Inputs) -> BinaryIO:
    """Standard input, if it is the input."""
    return sys.stdin.buffer if inputs.format == STREAM_FORMAT else io.BytesIO()


def _workers(options: argparse.Namespace, model: Model, *, encoded: bool) -> int:
    """Number of decoding processes: files are slow, and processes do not share a GIL."""
    if options.ray is not None:
        return len(model.devices)  # the cluster decodes where it scores
    if options.workers is not None:
        return int(options.workers)
    return usable_cores() if encoded else 0


def _has_files(model: Model, source: RowSource) -> bool:
    return model.manifest.codec.kind in ("image", "audio") and not source.has_numbers
