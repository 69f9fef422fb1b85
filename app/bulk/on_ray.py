"""A run on a Ray Data cluster, which reads and scores, and repeats the work of lost nodes."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.data
from ray.exceptions import RayError

from app.bulk.blocks import BLOCK_BYTES, Block, BlockBounds, RowSource
from app.bulk.decoding import Recipe
from app.bulk.errors import BulkError, UsageError
from app.bulk.inputs import STREAM, Inputs
from app.bulk.model import Choices, codec_files, steps_of
from app.bulk.nodes import (
    BLOCK,
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
from app.bulk.pipeline import FinishedBlock
from app.codecs.base import Codec
from app.codecs.choose import codec_for
from app.registry.repository import Artifact
from app.types import Device

LOCAL = "local"
PIECE_BLOCKS = 16  # blocks of a reading task
RESTARTS = 8  # of an actor; without a bound, rows that kill their process would repeat endlessly


class ClusterModel:
    """The model of a run on a cluster, like `BulkModel` for a local run.

    Raises:
        UsageError: if the cluster has no such devices.
        BulkError: if the node that tries the model does not have it, or it does not work there.
    """

    def __init__(self, artifact: Artifact, root: Path, choices: Choices) -> None:
        self.artifact = artifact
        self.manifest = artifact.manifest
        self.files: Mapping[str, bytes] = codec_files(artifact)
        self.codec: Codec = codec_for(self.manifest, self.files.__getitem__)
        self.devices, actor_choices = _devices(choices)
        order = Order((root, root.absolute()), artifact.id, artifact.digest, actor_choices)
        self.resources = _resources(actor_choices)
        facts = _result(ray.remote(**self.resources)(find_out).remote(order))
        self.batch, self.steps = facts.batch, facts.steps
        self.label, self.kinds, self.threads = facts.label, facts.kinds, facts.threads
        actor_choices = dataclasses.replace(
            actor_choices, batch=self.batch, steps=steps_of(self.steps)
        )
        self.order = dataclasses.replace(order, choices=actor_choices)

    @property
    def on_gpus(self) -> bool:
        """Whether each actor has a GPU."""
        return "num_gpus" in self.resources


@dataclass(frozen=True, slots=True)
class ClusterStages:
    """Runs blocks through the model on the cluster; see `Stages`.

    Attributes:
        model: the actors' model.
        source: must be readable on every node.
        bounds: where blocks end.
        stop: the first row that is left out; None to read all rows.
        recipe: decodes blocks.
        top_k: see `Answers`.
    """

    model: ClusterModel
    source: RowSource
    bounds: BlockBounds
    stop: int | None
    recipe: Recipe
    top_k: int | None

    def start(self) -> None:
        """Do nothing: a node has verified the model, and each actor verifies its own."""

    def run(self, first: int, _: Callable[[], Iterator[Block]]) -> Iterator[FinishedBlock]:
        """Score the blocks from row `first` on, which the nodes read; yields them in order.

        Raises:
            BulkError: if a node cannot continue, or the cluster is lost.
        """
        try:
            pieces = [{FIRST: low, STOP: high} for low, high in self._pieces(first)]
            if not pieces:  # only the manifest remains to be written
                return
            tables = self._score(pieces)
            for table in tables.iter_batches(batch_size=None, batch_format="pyarrow"):
                for block in table.column(BLOCK):
                    result = unpack(block.as_py())
                    if result.block.first != first:
                        raise BulkError(f"bug: row {result.block.first} came in place of {first}")
                    first += len(result.block)
                    yield result
        except RayError as error:
            raise _cluster_error(error, f"; row {first} is the first missing row") from error

    def close(self) -> bool:
        """Leave the cluster; a cluster started for the run ends."""
        ray.shutdown()
        return True

    def _score(self, pieces: Sequence[Mapping[str, int]]) -> Any:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.target_max_block_size = BLOCK_BYTES  # repeated if an actor is lost
        context.enable_progress_bars = context.print_on_execution_start = False
        model, on_gpus = self.model, self.model.on_gpus
        actors = len(model.devices)  # grows with the cluster
        return (
            ray.data.from_items(pieces, override_num_blocks=len(pieces))
            .map_batches(
                read,
                batch_size=1,
                batch_format="pyarrow",
                # With GPUs, tasks decode on the free cores; otherwise the actors use all cores.
                fn_args=(self.source, self.bounds, self.recipe if on_gpus else None),
                num_cpus=1 if on_gpus else 0,
                compute=ray.data.TaskPoolStrategy(size=min(len(pieces), actors)),
            )
            .map_batches(
                ScoringActor,
                batch_size=1,
                batch_format="pyarrow",
                fn_constructor_args=(model.order, self.recipe, self.top_k),
                fn_constructor_kwargs={"integer_ids": self.source.integer_ids},
                compute=ray.data.ActorPoolStrategy(min_size=1, initial_size=actors),
                max_restarts=RESTARTS,
                **model.resources,
            )
        )

    def _pieces(self, first: int) -> Iterator[tuple[int, int]]:
        """The first row and the end of each task's piece.

        If row numbers are not known before reading, one task reads all rows.
        """
        stop, total = self.stop, self.source.total
        if total is None:
            yield first, TO_THE_END if stop is None else stop
            return
        total = total if stop is None else min(total, stop)
        while first < total:
            end = first
            for _ in range(PIECE_BLOCKS):
                end = min(self.bounds.end(end), total)
            yield first, end
            first = end


def reachable(inputs: Inputs) -> Inputs:
    """The inputs by names that are valid on every node.

    Raises:
        UsageError: if they are standard input.
    """
    if inputs.format == "stream":
        raise UsageError(f"a cluster cannot read {STREAM}: write it to a file first")
    return dataclasses.replace(inputs, files=tuple(path.absolute() for path in inputs.files))


def connect(address: str) -> None:
    """Connect to a cluster, or start one on this machine.

    Raises:
        BulkError: if no cluster answers.
    """
    more: dict[str, Any] = {}
    if address == LOCAL:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # other clusters' owners decide
        more = {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        ray.init(address, logging_level="error", log_to_driver=False, **more)
    except (OSError, RuntimeError, ValueError, RayError) as error:
        raise BulkError(f"--ray {address}: {_first_line(error)}") from error


def _devices(choices: Choices) -> tuple[Sequence[Device], Choices]:
    """One device for each actor that fits now, and the choices of an actor."""
    if choices.devices not in {"auto", "cpu", "cuda"}:
        raise UsageError(f"--devices {choices.devices}: with --ray it must be auto, cpu or cuda")
    there = ray.cluster_resources()
    gpus, cpus = int(there.get("GPU", 0)), int(there.get("CPU", 0))
    if choices.devices == "cuda" and not gpus:
        raise UsageError("--devices cuda: the cluster has no GPU")
    on_gpus = gpus > 0 and choices.devices != "cpu"
    threads = choices.threads or 1
    actors = gpus if on_gpus else cpus // threads
    if not actors:
        raise UsageError(f"an actor needs {threads} CPUs, the cluster has {cpus}")
    actor_choices = dataclasses.replace(
        choices,
        devices="cuda:0" if on_gpus else "cpu",  # Ray shows an actor only its own GPU
        replicas_per_device=1,
        threads=threads,
    )
    return [Device("cuda" if on_gpus else "cpu", at) for at in range(actors)], actor_choices


def _resources(choices: Choices) -> dict[str, float]:
    """The resources that Ray reserves for an actor."""
    cpus = {"num_cpus": float(choices.threads or 1)}
    return cpus if choices.devices == "cpu" else {**cpus, "num_gpus": 1.0}


def _result(task: Any) -> Facts:
    try:
        result = ray.get(task)
    except RayError as error:
        raise _cluster_error(error) from error
    if isinstance(result, BulkError):
        raise result
    facts: Facts = result
    return facts


def _cluster_error(error: RayError, where: str = "") -> BulkError:
    return BulkError(f"Ray cannot continue: {_first_line(error)}{where}")


def _first_line(error: Exception) -> str:
    """An error's text without the traceback that Ray adds."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
