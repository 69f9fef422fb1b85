"""Computes sentence vectors by an artifact's own forwards, without any server."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import torch

from loadtests.bench.own_models import manifest_of
from loadtests.bench.peers.model import forward_of
from models.codec_specs import TextCodecSpec
from models.padding import padding_of
from models.tensors import Array
from models.tokenize import Tokenizer

TOGETHER = 32  # sentences per forward


class Encoder:
    """A model that reads texts, on one thread.

    Args:
        folder: an artifact; its codec is `text`, and its inputs have a mask.
        forward: the plain script or the forms of the plan.

    Raises:
        ValueError: if the model is of another kind.
    """

    def __init__(self, folder: Path, forward: Literal["script", "plan"]) -> None:
        manifest = manifest_of(folder)
        self._inputs = manifest.inputs
        padding = padding_of(manifest.inputs, manifest.outputs)
        if not isinstance(manifest.codec, TextCodecSpec) or padding is None:
            raise ValueError(f"{manifest.model} does not read texts of different lengths")
        self._padding = padding
        data = (folder / manifest.codec.tokenizer).read_bytes()
        self._tokenizer = Tokenizer(data, manifest.codec)
        self._forward = forward_of(folder, manifest, forward)

    def vectors(self, texts: Array) -> Array:
        """Compute texts [n] -> float32 [n, k]; texts of similar lengths share a forward."""
        tokens = [self._tokenizer.tokens(text) for text in texts.tolist()]
        by_length = sorted(range(len(tokens)), key=lambda at: len(tokens[at].ids))
        rows: dict[int, Array] = {}
        for start in range(0, len(by_length), TOGETHER):
            places = by_length[start : start + TOGETHER]
            items = [self._tokenizer.arrays(tokens[at]) for at in places]
            batch = self._padding.stack(items)
            with torch.inference_mode():
                made = self._forward(*(torch.from_numpy(batch[s.name]) for s in self._inputs))
            rows.update(zip(places, made.numpy(), strict=True))
        return np.stack([rows[at] for at in range(len(rows))])
