"""The work of a cluster's nodes: tasks that read, and actors that hold the model and score.

Nothing here depends on the cluster. Errors are returned as values: a cluster would wrap an
exception in its own, with a traceback as text.
"""

from __future__ import annotations

import dataclasses
import pickle  # nosec B403 # only for data of our own tasks, see `loaded`
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
from app.bulk.blocks import Block, Cut, RawBlock, Source, raw_blocks
from app.bulk.decoding import Decoder, Recipe
from app.bulk.errors import BulkError
from app.bulk.model import BulkModel, Choices
from app.bulk.pipeline import Done
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
        model: the model's id.
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
        given, absolute = self.folders
        here = (given / self.model.name / str(self.model.version)).is_dir()
        advice = (
            "every node needs the driver's model, in a shared folder or in a working_dir of the "
            "cluster: docs/ray.md"
        )
        try:
            artifact = Repository(given if here else absolute).open(self.model)
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


def read(piece: Any, source: Source, cut: Cut, recipe: Recipe | None) -> Iterator[Any]:
    """A task: the blocks of a piece.

    Args:
        piece: a table with one row: the piece's first row and its end.
        source: must be readable here.
        cut: where blocks end.
        recipe: decodes them; None if the actors decode.
    """
    first, stop = (piece.column(name)[0].as_py() for name in (FIRST, STOP))
    decoder = Decoder(recipe) if recipe is not None else None
    try:
        for raw in raw_blocks(source, first, cut, None if stop == TO_THE_END else stop):
            yield _packed(decoder.decode(raw) if decoder is not None else raw)
    except BulkError as error:
        yield _packed(BulkError(f"on the node {platform.node()}: {error}"))


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
        self._answers = partial(Answers, top_k=top_k, integer_ids=integer_ids, kept=recipe.kept)
        self._loaded: tuple[BulkModel, Scorer, Answers] | None = None
        self._thread = 0

    def __call__(self, table: Any) -> Any:
        """Score the block of a table."""
        try:
            return _packed(self._done(loaded(table.column(BLOCK)[0].as_py())))
        except (BulkError, TorchlaneError) as error:
            return _packed(_as_it_is(error))

    def _done(self, given: RawBlock | Block) -> Done:
        # Not in the constructor: the cluster would raise an error there instead of returning it.
        model, scorer, answers = self._loaded = self._loaded or self._load()
        if self._thread != threading.get_ident():
            model.begin(0)  # must run in the computing thread
            self._thread = threading.get_ident()
        block = given if isinstance(given, Block) else self._decoder.decode(given)
        began = time.perf_counter()
        scored = scorer.score(block)
        computed = time.perf_counter()
        table = answers.table(scored)
        times = 0.0, computed - began, time.perf_counter() - computed
        rows = dataclasses.replace(
            block, arrays=None, items=None, kept=()
        )  # the driver does not need them
        return Done(rows, table, scored.computed, times)

    def _load(self) -> tuple[BulkModel, Scorer, Answers]:
        model = self._order.open()
        model.begin(0)
        self._thread = threading.get_ident()
        return model, _scorer(model), self._answers(model.manifest, model.codec)


def loaded(block: bytes) -> Any:
    """A block of a table.

    Raises:
        BulkError: if the task returned one.
    """
    # From our own tasks, through a cluster that sends everything in this way.
    given = pickle.loads(block)  # nosec B301
    if isinstance(given, BulkError):
        raise given
    return given


def _packed(block: object) -> Any:
    return pa.table({BLOCK: pa.array([pickle.dumps(block)], pa.large_binary())})


def _scorer(model: BulkModel) -> Scorer:
    return Scorer(model.manifest, partial(model.backend, 0), model.contract, model.batch)


def _as_it_is(error: Exception) -> BulkError:
    return error if isinstance(error, BulkError) else BulkError(str(error))
