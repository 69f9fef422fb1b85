"""Decodes blocks ahead of the model: in worker processes, or in the thread that reads.

The data set is map-style. Its index is a raw block: rows of a stream, or where rows are in files.
So one reader serves streams and files alike, order is kept, and no worker reads what another did.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterable, Iterator
from multiprocessing.connection import wait
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from app.bulk.blocks import Block, RawBlock
from app.bulk.decoding import Decoder, Recipe
from app.bulk.errors import BulkError
from app.bulk.numbers import writable
from app.types import Arrays, Item, Note, Signature

AHEAD = 2  # blocks of each worker
# Imported once, for all workers. Not ours: the server of forks may know another path to it.
SHARED = ["torch.utils.data", "numpy", "pyarrow.compute", "pydantic", "PIL.Image"]


class Blocks(Dataset[Any]):
    """Raw block -> decoded block; each process makes its own codec.

    Args:
        recipe: makes the decoder.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._decoder: Decoder | None = None

    def __getitem__(self, raw: RawBlock) -> Block | BulkError:
        if self._decoder is None:
            self._decoder = Decoder(self._recipe)
        try:
            return self._decoder.decode(raw)
        except BulkError as error:  # as it is: the loader would wrap it into a traceback
            return error


def decoded(raw: Iterable[RawBlock], recipe: Recipe, workers: int) -> Iterator[Block]:
    """Decode blocks, in order.

    Args:
        raw: read in the calling thread.
        recipe: see `Recipe`.
        workers: processes; 0: the calling thread decodes.

    Raises:
        BulkError: a file cannot be read, or a worker died.
    """
    loader: DataLoader[Any] = DataLoader(
        Blocks(recipe),
        batch_size=None,
        sampler=raw,
        num_workers=workers,
        collate_fn=_shared if workers else _as_it_is,
        # Not fork: this process has threads of torch, whose locks a fork would never see opened.
        multiprocessing_context=_context() if workers else None,
        prefetch_factor=AHEAD if workers else None,
        worker_init_fn=_begin if workers else None,
    )
    blocks = iter(loader)
    while True:
        try:
            block = next(blocks, None)
        except RuntimeError as error:
            if "DataLoader worker" not in str(error):
                raise
            raise BulkError(
                "a process that decodes was ended from outside, perhaps for want of memory: "
                "choose fewer --workers"
            ) from error
        if block is None:
            return
        if isinstance(block, BulkError):
            raise block
        yield _received(block)


def _context() -> Any:
    # A run that is interrupted ends at once; what it leaves is removed without a word.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SHARED)
    return context


def _begin(_: int) -> None:
    """In a worker: Ctrl-C is for the parent, which ends its workers, however it ends itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """The loader's own watch looks at the parent's id, which here is the server of forks."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(0)


def _as_it_is(block: Any) -> Any:
    return block


class _Sent(NamedTuple):
    """A block on its way from a worker: arrays as tensors, which go through shared memory.

    Items are taken apart, because machine code's objects cannot be sent.
    """

    block: Block
    items: list[tuple[Arrays, Signature, int, Note | None]] | None


def _shared(block: Any) -> Any:
    if isinstance(block, BulkError):
        return block
    if block.arrays is not None:
        # Writable, or torch warns.
        arrays = block.arrays.items()
        block.arrays = {name: torch.from_numpy(writable(each)) for name, each in arrays}
    items = block.items
    block.items = None
    parts = [(each.arrays, each.signature, each.length, each.note) for each in items or ()]
    return _Sent(block, None if items is None else parts)


def _received(sent: Block | _Sent) -> Block:
    """What `_shared` did, undone."""
    if isinstance(sent, Block):
        return sent
    block = sent.block
    if block.arrays is not None:
        block.arrays = {name: np.asarray(array) for name, array in block.arrays.items()}
    if sent.items is not None:
        block.items = [Item(*parts) for parts in sent.items]
    return block
