"""The work of a cluster's nodes: tasks that read, and actors that hold the model and score.

Nothing here depends on the cluster. Errors are returned as values: a cluster would wrap an
exception in its own, with a traceback as text.
"""

from __future__ import annotations

import dataclasses
import pickle  # nosec B403 # only for data of our own tasks, see `unpack`
import platform
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from app.bulk.answers import Answers
from app.bulk.blocks import Block, BlockBounds, RawBlock, RowSource, raw_blocks
from app.bulk.decoding import Decoder, Recipe
from app.bulk.errors import BulkError
from app.bulk.model import BulkModel, Choices
from app.bulk.pipeline import FinishedBlock
from app.bulk.scoring import Scorer
from app.errors import ArtifactInvalid, TorchlaneError
from app.registry.repository import Repository
from app.types import ModelId

BLOCK = "block"  # the only column of the cluster's tables; each row is a pickled block
FIRST, STOP = "first", "stop"  # of a piece to read
TO_THE_END = -1


@dataclass(frozen=True, slots=True)
class Order:
    """What a node needs to open the model.

    Attributes:
        folders: possible folders of the repository: as the user wrote it, for a working folder
            that the cluster created, and as an absolute path.
        digest: digest of the driver's artifact, which the node's artifact must have too.
        choices: the user's choices, for one replica.
    """

    folders: tuple[Path, Path]
    model: ModelId
    digest: str
    choices: Choices

    def open(self) -> BulkModel:
        """Open the model on this node.

        Raises:
            BulkError: if it is missing, damaged, or differs from the driver's.
        """
        relative, absolute = self.folders
        here = (relative / self.model.name / str(self.model.version)).is_dir()
        advice = (
            "every node needs the driver's model, in a shared folder or in a working_dir of the "
            "cluster: docs/ray.md"
        )
        try:
            artifact = Repository(relative if here else absolute).open(self.model)
        except ArtifactInvalid as error:
            raise BulkError(f"on the node {platform.node()}: {error}; {advice}") from error
        if artifact.digest != self.digest:
            raise BulkError(
                f"on the node {platform.node()}: {artifact.folder} has the digest "
                f"{artifact.digest}, the driver's has {self.digest}; {advice}"
            )
        return BulkModel(artifact, self.choices)


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts about the model from one node, which all other nodes follow.

    Attributes:
        batch: items of a forward.
        label: the selected variant and precision.
        kinds: kinds of devices.
        threads: threads of each actor.
        steps: form for each batch size.
    """

    batch: int
    label: str
    kinds: Sequence[str]
    threads: int
    steps: list[dict[str, object]]


def find_out(order: Order) -> Facts | BulkError:
    """A task: load and verify the model."""
    try:
        model = order.open()
        model.begin(0)
        _scorer(model).close()
    except (BulkError, TorchlaneError) as error:
        return _as_it_is(error)
    kinds = sorted(model.kinds)
    return Facts(model.batch, model.label, kinds, model.threads, model.steps)


def read(
    piece: Any, source: RowSource, bounds: BlockBounds, recipe: Recipe | None
) -> Iterator[Any]:
    """A task: the blocks of a piece.

    Args:
        piece: a table with one row: the piece's first row and its end.
        source: must be readable here.
        bounds: where blocks end.
        recipe: decodes them; None if the actors decode.
    """
    first, stop = (piece.column(name)[0].as_py() for name in (FIRST, STOP))
    decoder = Decoder(recipe) if recipe is not None else None
    try:
        for raw in raw_blocks(source, first, bounds, None if stop == TO_THE_END else stop):
            yield _pack(decoder.decode(raw) if decoder is not None else raw)
    except BulkError as error:
        yield _pack(BulkError(f"on the node {platform.node()}: {error}"))


class ScoringActor:
    """Holds the model, which is loaded and verified once, and scores incoming blocks.

    Args:
        order: opens the model.
        recipe: decodes blocks that are not yet decoded.
        top_k: see `Answers`.
        integer_ids: see `Answers`.
    """

    def __init__(
        self, order: Order, recipe: Recipe, top_k: int | None, *, integer_ids: bool
    ) -> None:
        self._order = order
        self._decoder = Decoder(recipe)
        self._answers = partial(
            Answers, top_k=top_k, integer_ids=integer_ids, extra_columns=recipe.extra_columns
        )
        self._model: tuple[BulkModel, Scorer, Answers] | None = None
        self._thread = 0

    def __call__(self, table: Any) -> Any:
        """Score the block of a table."""
        try:
            return _pack(self._score(unpack(table.column(BLOCK)[0].as_py())))
        except (BulkError, TorchlaneError) as error:
            return _pack(_as_it_is(error))

    def _score(self, block: RawBlock | Block) -> FinishedBlock:
        # Not in the constructor: the cluster would raise an error there instead of returning it.
        model, scorer, answers = self._model = self._model or self._load()
        if self._thread != threading.get_ident():
            model.begin(0)  # must run in the computing thread
            self._thread = threading.get_ident()
        decoded_block = block if isinstance(block, Block) else self._decoder.decode(block)
        began = time.perf_counter()
        scored_block = scorer.score(decoded_block)
        computed_at = time.perf_counter()
        table = answers.table(scored_block)
        times = 0.0, computed_at - began, time.perf_counter() - computed_at
        rows = dataclasses.replace(
            decoded_block, arrays=None, items=None, extra_columns=()
        )  # the driver does not need them
        return FinishedBlock(rows, table, scored_block.computed_count, times)

    def _load(self) -> tuple[BulkModel, Scorer, Answers]:
        model = self._order.open()
        model.begin(0)
        self._thread = threading.get_ident()
        return model, _scorer(model), self._answers(model.manifest, model.codec)


def unpack(block: bytes) -> Any:
    """A block of a table.

    Raises:
        BulkError: if the task returned one.
    """
    # From our own tasks, through a cluster that sends everything in this way.
    content = pickle.loads(block)  # nosec B301
    if isinstance(content, BulkError):
        raise content
    return content


def _pack(block: object) -> Any:
    return pa.table({BLOCK: pa.array([pickle.dumps(block)], pa.large_binary())})


def _scorer(model: BulkModel) -> Scorer:
    return Scorer(model.manifest, partial(model.backend, 0), model.contract, model.batch)


def _as_it_is(error: Exception) -> BulkError:
    return error if isinstance(error, BulkError) else BulkError(str(error))
