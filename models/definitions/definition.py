"""The interface between a model file in this package and export."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from pydantic import JsonValue
from torch import nn

from models.codec_specs import CodecSpec
from models.definitions.training import Training
from models.tensors import Array, Arrays, FileName, TensorSpec


class Progress(Protocol):
    """Called by a training loop with its progress."""

    def __call__(self, done: int, total: int, note: str) -> None:
        """Report `done` of `total` steps; `note` is a word on the state, such as the loss."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """A labelled test set that training never saw.

    Attributes:
        inputs: input name -> array with the batch axis.
        labels: int array [n], the correct index on the last axis of the first output; with a
            `score`, its reference for outputs, [n, ...].
        score: rates outputs (name -> array [n, ...]) given the labels, 0 to 1; None: the share of
            correct indices.
    """

    inputs: Arrays
    labels: Array
    score: Callable[[Arrays, Array], float] | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """A model that export can build.

    Attributes:
        description: one sentence for /models and the catalog.
        inputs, outputs, codec: the public contract, copied into the manifest.
        build: returns the untrained module, in eval mode.
        train: fits the module in place at each export, for example `TRAINING.fit`; None: it keeps
            its weights as built, unless a checkpoint is given.
        random_inputs: draws a batch of inputs (with the batch axis) that resemble real ones.
        golden_inputs: returns the items (without the batch axis) that a server replays before it
            is ready.
        example: one item as a client sends it in JSON; None: too large to show.
        held_out: the test set; None: accuracy is meaningless.
        calibration: batches of real inputs (with the batch axis) for int8's ranges, never the
            held-out ones. None: no static int8.
        files: further files of the artifact, such as a tokenizer; None: no files.
        stages: splits the built module into modules that run one after the other, so that each may
            have its own device: the first accepts the inputs, each other one the outputs of its
            predecessor (a tensor, or a tuple of tensors), and the last returns the outputs. All
            keep the batch on axis 0. None: it stays whole.
        training: how `torchlane train` trains it; None: it does not.
        real_inputs: a sentence on the real inputs from which `random_inputs` and `golden_inputs`
            draw; empty: they are made up.
    """

    description: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    codec: CodecSpec
    build: Callable[[], nn.Module]
    train: Callable[[nn.Module, Progress], None] | None
    random_inputs: Callable[[np.random.Generator, int], Arrays]
    golden_inputs: Callable[[], list[Arrays]]
    example: Callable[[], JsonValue]
    held_out: Callable[[], HeldOut] | None = None
    calibration: Callable[[], list[Arrays]] | None = None
    files: Callable[[], Mapping[FileName, bytes]] | None = None
    stages: Callable[[nn.Module], Sequence[nn.Module]] | None = None
    training: Training | None = None
    real_inputs: str = ""
