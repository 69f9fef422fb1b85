"""Inputs for verifying text models: tokenized sentences, and random tokens of every length."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import JsonValue

from models.codec_specs import TextCodecSpec
from models.definitions.prose import sentences
from models.inputs.tokenize import TextError, Tokenizer
from models.padding import padding_of
from models.tensors import Array, Arrays, Dimension, TensorSpec

GOLDEN_TOKENS = (4, 16, 64, 512)
HELD_OUT = 128  # sentences
HELD_OUT_TOKENS = 64  # most per sentence


def text_inputs(
    codec: TextCodecSpec, vocabulary: int, *, pad: int = 0, types: int = 2
) -> tuple[TensorSpec, ...]:
    """Return the inputs of a text model, which share one padded dimension.

    `vocabulary` and `types` are how many tokens and types of tokens the model knows; `pad` is the
    token in padded places.
    """
    dimension = Dimension(name="seq", least=1, most=codec.max_tokens, mask=codec.mask)
    last = {codec.ids: vocabulary - 1, codec.mask: 1, codec.type_ids: types - 1}
    return tuple(
        TensorSpec(
            name=name,
            dtype="int64",
            shape=(-1, -1),
            dimensions=(dimension,),
            minimum=0,
            maximum=last[name],
            fill=pad if name == codec.ids else 0,
        )
        for name in codec.inputs
    )


def text_batch(
    tokenizer: Tokenizer, inputs: tuple[TensorSpec, ...], texts: Sequence[tuple[str, str | None]]
) -> dict[str, Array]:
    """Batch texts, or pairs of them, padded to the longest.

    `inputs` are from `text_inputs`.
    """
    padding = padding_of(inputs, ())
    if padding is None:
        raise RuntimeError("a bug in text_inputs: no dimension is padded")
    return padding.stack([tokenizer.arrays(tokenizer.tokens(*each)) for each in texts])


@dataclass(frozen=True, slots=True)
class TextSamples:
    """Samples of one model.

    Attributes:
        tokenizer: the file.
        inputs: from `text_inputs`.
        texts: at least two that resemble real ones.
    """

    tokenizer: bytes
    codec: TextCodecSpec
    inputs: tuple[TensorSpec, ...]
    texts: Sequence[str] = ()

    def golden_inputs(self) -> list[Arrays]:
        """Return texts of about four lengths, geometrically spread up to the longest."""
        long = " ".join(self._texts())
        items = []
        for tokens in sorted({min(tokens, self.codec.max_tokens) for tokens in GOLDEN_TOKENS}):
            try:
                tokenizer = self._tokenizer(tokens)
            except TextError:  # no room for the special tokens
                continue
            items.append(tokenizer.arrays(tokenizer.tokens(long, self._second(long))))
        return items

    def random_inputs(self, rng: np.random.Generator, batch: int) -> Arrays:
        """Draw tokens of one length; mask out the ends of about half of the items.

        Each doubling of the length is equally likely.
        """
        longest = min(self.codec.max_tokens, GOLDEN_TOKENS[-1])
        length = min(longest, round(math.exp(rng.uniform(0, math.log(longest + 0.5)))))
        lengths = np.where(rng.random(batch) < 0.5, length, rng.integers(1, length + 1, batch))
        mask = np.arange(length) < lengths[:, None]  # [batch, length]
        arrays: dict[str, Array] = {}
        for spec in self.inputs:
            values = rng.integers(0, (spec.maximum or 0) + 1, (batch, length))
            arrays[spec.name] = np.where(
                mask, np.int64(1) if spec.name == self.codec.mask else values, np.int64(spec.fill)
            )
        return arrays

    def held_out_inputs(self) -> Arrays:
        """Return some texts as one batch, padded to the longest."""
        tokenizer = self._tokenizer(min(self.codec.max_tokens, HELD_OUT_TOKENS))
        texts = self._texts()[:HELD_OUT]
        return text_batch(tokenizer, self.inputs, [(text, self._second(text)) for text in texts])

    def example(self) -> JsonValue:
        """Return a text, or a pair of texts."""
        first, second = self._texts()[:2]
        return [first, second] if self.codec.pairs else first

    def _texts(self) -> Sequence[str]:
        return self.texts or sentences()

    def _second(self, text: str) -> str | None:
        return text if self.codec.pairs else None

    def _tokenizer(self, tokens: int) -> Tokenizer:
        return Tokenizer(self.tokenizer, self.codec.model_copy(update={"max_tokens": tokens}))


def mean_cosine(outputs: Arrays, vectors: Array) -> float:
    """Return the mean cosine of embeddings and the correct vectors, [n, d]: 1 if equal."""
    (embeddings,) = outputs.values()
    lengths = np.linalg.norm(embeddings, axis=1) * np.linalg.norm(vectors, axis=1)
    cosines = (embeddings.astype(np.float64) * vectors).sum(1) / np.maximum(lengths, 1e-12)
    return float(np.clip(cosines, 0, 1).mean())
