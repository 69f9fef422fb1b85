"""Decodes blocks ahead of the model: in worker processes, or in the reading thread.

The data set is map-style. Its index is a raw block: rows of a stream, or locations of rows in
files. So one reader serves streams and files, order is kept, and workers read no row twice.
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
from app.types import Array, Arrays, Item, Note, Signature

AHEAD = 2  # blocks per worker
# Imported once, for all workers. Not our own modules: the fork server may have another path.
PRELOADED_MODULES = ["torch.utils.data", "numpy", "pyarrow.compute", "pydantic", "PIL.Image"]


class Blocks(Dataset[Any]):
    """Raw block -> decoded block; each process creates its own codec."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._decoder: Decoder | None = None

    def __getitem__(self, raw: RawBlock) -> Block | BulkError:
        if self._decoder is None:
            self._decoder = Decoder(self._recipe)
        try:
            return self._decoder.decode(raw)
        except BulkError as error:  # returned: the loader would wrap it in a traceback
            return error


def decode_blocks(raw: Iterable[RawBlock], recipe: Recipe, workers: int) -> Iterator[Block]:
    """Decode blocks, in order.

    Args:
        raw: blocks, read in the calling thread.
        recipe: see `Recipe`.
        workers: number of processes; 0 to decode in the calling thread.

    Raises:
        BulkError: if a file cannot be read, or a worker died.
    """
    loader: DataLoader[Any] = DataLoader(
        Blocks(recipe),
        batch_size=None,
        sampler=raw,
        num_workers=workers,
        collate_fn=_to_message if workers else _as_it_is,
        # Not fork: torch's threads in this process may hold locks, which stay locked in a fork.
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
                "a decoding process was killed, possibly for lack of memory: use fewer --workers"
            ) from error
        if block is None:
            return
        if isinstance(block, BulkError):
            raise block
        yield _from_message(block)


def _context() -> Any:
    # An interrupted run ends at once; its remains are removed without a warning.
    os.environ.setdefault("PYTHONWARNINGS", "ignore::UserWarning:multiprocessing.resource_tracker")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED_MODULES)
    return context


def _begin(_: int) -> None:
    """In a worker: ignore Ctrl-C, and end with the parent, however the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker with the main process; the loader's own check sees only the fork server."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(0)


def _as_it_is(block: Any) -> Any:
    return block


class _BlockMessage(NamedTuple):
    """A block sent from a worker: arrays become tensors, which use shared memory.

    Items are split into parts, because objects of compiled classes cannot be sent.
    """

    block: Block
    items: list[tuple[Arrays, Signature, int, Note | None]] | None


def _to_message(block: Any) -> Any:
    if isinstance(block, BulkError):
        return block
    if block.arrays is not None:
        # Shared here: the thread that sends them would print an error and drop the block, for which
        # the reader would wait forever.
        arrays = block.arrays.items()
        try:
            block.arrays = {name: _in_shared_memory(each) for name, each in arrays}
        except RuntimeError as error:
            nbytes = sum(each.nbytes for _, each in arrays)
            return BulkError(
                f"a decoded block of {nbytes} bytes does not fit into shared memory ({error}): "
                "free /dev/shm or give the container more (--shm-size), or use fewer --workers; "
                "--workers 0 needs none"
            )
    items = block.items
    block.items = None
    parts = [(each.arrays, each.signature, each.length, each.note) for each in items or ()]
    return _BlockMessage(block, None if items is None else parts)


def _in_shared_memory(array: Array) -> torch.Tensor:
    tensor = torch.from_numpy(writable(array))  # otherwise torch warns
    tensor.share_memory_()  # type: ignore[no-untyped-call]
    return tensor


def _from_message(message: Block | _BlockMessage) -> Block:
    """Undo `_to_message`."""
    if isinstance(message, Block):
        return message
    block = message.block
    if block.arrays is not None:
        block.arrays = {name: np.asarray(array) for name, array in block.arrays.items()}
    if message.items is not None:
        block.items = [Item(*parts) for parts in message.items]
    return block
