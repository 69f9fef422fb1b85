"""What the nodes of a cluster run: tasks that read, and actors that hold the model and score.

Nothing here knows the cluster. Errors travel as values: a cluster would wrap an exception into its
own, with a traceback for text.
"""

from __future__ import annotations

import dataclasses
import pickle  # nosec B403 # of what our own tasks made, see `loaded`
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

BLOCK = "block"  # the only column of the cluster's tables; a row is a pickled block
FIRST, STOP = "first", "stop"  # of a piece that is read
TO_THE_END = -1


@dataclass(frozen=True, slots=True)
class Order:
    """What a node needs to have the model.

    Attributes:
        folders: where the repository may be: as the user wrote it, which is right in a working
            folder that the cluster made, and as an absolute path.
        model: which one.
        digest: of the driver's artifact: the node's must have the same.
        choices: of the user, for one replica.
    """

    folders: tuple[Path, Path]
    model: ModelId
    digest: str
    choices: Choices

    def open(self) -> BulkModel:
        """Open the model on this node.

        Raises:
            BulkError: it is not here, not intact, or not the driver's.
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
    """What one node found out about the model; all others follow it.

    Attributes:
        batch: items of a forward.
        label: what was selected.
        kinds: of devices.
        threads: of each actor.
        steps: form of each batch size.
    """

    batch: int
    label: str
    kinds: Sequence[str]
    threads: int
    steps: list[dict[str, object]]


def find_out(order: Order) -> Facts | BulkError:
    """A task: load the model and prove it."""
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
        piece: a table with one row, the first row of the piece and the end of it.
        source: readable here.
        cut: where blocks end.
        recipe: decodes them; None: the actors will.
    """
    first, stop = (piece.column(name)[0].as_py() for name in (FIRST, STOP))
    decoder = Decoder(recipe) if recipe is not None else None
    try:
        for raw in raw_blocks(source, first, cut, None if stop == TO_THE_END else stop):
            yield _packed(decoder.decode(raw) if decoder is not None else raw)
    except BulkError as error:
        yield _packed(BulkError(f"on the node {platform.node()}: {error}"))


class ScoringActor:
    """Holds the model, which is loaded and proved once, and scores the blocks that come.

    Args:
        order: for the model.
        recipe: decodes blocks that are not yet.
        top_k: see `Answers`.
        integer_ids: see `Answers`.
    """

    def __init__(
        self, order: Order, recipe: Recipe, top_k: int | None, *, integer_ids: bool
    ) -> None:
        self._order = order
        self._decoder = Decoder(recipe)
        self._answers = partial(Answers, top_k=top_k, integer_ids=integer_ids)
        self._loaded: tuple[BulkModel, Scorer, Answers] | None = None
        self._thread = 0

    def __call__(self, table: Any) -> Any:
        """Score the block of a table."""
        try:
            return _packed(self._done(loaded(table.column(BLOCK)[0].as_py())))
        except (BulkError, TorchlaneError) as error:
            return _packed(_as_it_is(error))

    def _done(self, given: RawBlock | Block) -> Done:
        # Not when the actor is made: an error there would be the cluster's, not a value.
        model, scorer, answers = self._loaded = self._loaded or self._load()
        if self._thread != threading.get_ident():
            model.begin(0)  # threads are set in the one that computes
            self._thread = threading.get_ident()
        block = given if isinstance(given, Block) else self._decoder.decode(given)
        began = time.perf_counter()
        scored = scorer.score(block)
        computed = time.perf_counter()
        table = answers.table(scored)
        times = 0.0, computed - began, time.perf_counter() - computed
        rows = dataclasses.replace(block, arrays=None, items=None)  # the driver has no use for them
        return Done(rows, table, scored.computed, times)

    def _load(self) -> tuple[BulkModel, Scorer, Answers]:
        model = self._order.open()
        model.begin(0)
        self._thread = threading.get_ident()
        return model, _scorer(model), self._answers(model.manifest, model.codec)


def loaded(block: bytes) -> Any:
    """A block of a table, or what went wrong.

    Raises:
        BulkError: what went wrong.
    """
    # From our own tasks, through a cluster that sends all there is in this way.
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
