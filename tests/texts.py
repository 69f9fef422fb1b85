"""Tiny tokenizers and manifests of text models, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

from app.codecs.base import Codec
from app.codecs.choose import codec_for
from models.codec_specs import TextCodecSpec
from models.manifest import Manifest
from models.tensors import Dimension, TensorSpec
from tests.artifacts import write_artifact
from tests.unit.models.manifests import make_manifest, spec

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "cat", "dog", "##s", "in", "london", "new")
IDS = {word: at for at, word in enumerate(WORDS)}
MAX_TOKENS = 8


def tiny_tokenizer() -> bytes:
    """WordPiece of WORDS in lower case, as BERT has it, with padding and truncation to ignore."""
    tokenizer = Tokenizer(models.WordPiece(IDS, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(each, IDS[each]) for each in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", special
    )
    tokenizer.enable_padding(length=32)
    tokenizer.enable_truncation(3)
    return tokenizer.to_str().encode()


def piece_tokenizer() -> bytes:
    """Unigram with Metaspace, as SentencePiece has it: a blank is a part of the word behind it."""
    words = ("[UNK]", "▁London", "▁", "▁in", "cats", "dogs", "▁calls", "▁a")
    tokenizer = Tokenizer(models.Unigram([(word, -3.0) for word in words], 0, False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer.to_str().encode()


def text_inputs(*, type_ids: bool = True, most: int = MAX_TOKENS) -> list[TensorSpec]:
    """The inputs of a text model, padded along `seq`."""
    seq = Dimension(name="seq", least=1, most=most, mask="attention_mask")
    names = ("input_ids", "attention_mask", "token_type_ids")
    return [
        TensorSpec(name=name, dtype="int64", shape=(-1, -1), dimensions=(seq,))
        for name in names[: 2 + type_ids]
    ]


def text_codec(
    *, type_ids: bool = True, max_tokens: int = MAX_TOKENS, **given: Any
) -> TextCodecSpec:
    """The spec of a text codec."""
    fields = {"task": "embed", "type_ids": "token_type_ids" if type_ids else None, **given}
    return TextCodecSpec(max_tokens=max_tokens, **fields)


def text_manifest(
    codec: TextCodecSpec | None = None, outputs: Sequence[TensorSpec] = ()
) -> Manifest:
    """The manifest of a text model, of embeddings [2] by default."""
    codec = codec or text_codec()
    return make_manifest(
        text_inputs(type_ids=codec.type_ids is not None, most=codec.max_tokens),
        list(outputs) or [spec("embedding", shape=(-1, 2))],
        codec,
        files=[codec.tokenizer],
    )


def tiny_text_codec(
    codec: TextCodecSpec | None = None, outputs: Sequence[TensorSpec] = ()
) -> Codec:
    """The codec of such a model, with the tiny tokenizer."""
    return codec_for(text_manifest(codec, outputs), lambda _: tiny_tokenizer())


class Tiny(nn.Module):
    """Token ids [n, seq] and their mask -> embedding [n, 2]: the mean id, and that of type 1."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """See the class."""
        both = torch.stack([ids * mask, ids * mask * types], dim=1).float()
        return both.sum(dim=2) / mask.sum(dim=1, keepdim=True)


class TinyTagger(nn.Module):
    """Token ids -> scores [n, seq, 3], the highest of which says the id modulo 3."""

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        """See the class."""
        return 5 * nn.functional.one_hot(ids % 3, 3).float()


def write_text(
    folder: Path,
    name: str = "text",
    *,
    version: int = 1,
    module: nn.Module | None = None,
    tokenizer: bytes | None = None,
    **given: Any,
) -> Path:
    """Write a text model; `given` goes to its codec."""
    codec = text_codec(**given)
    labels = codec.labels or ("x", "y")
    output = TensorSpec(name="embedding", dtype="float32", shape=(-1, len(labels)))
    if codec.of_tokens:
        (seq,) = text_inputs()[0].dimensions
        shape = (-1, -1, len(labels))
        output = TensorSpec(name="scores", dtype="float32", shape=shape, dimensions=(seq,))
    names = [each.name for each in text_inputs()]
    golden = [
        {each: np.array(values, np.int64) for each, values in zip(names, rows, strict=True)}
        for rows in (((2, 4, 6, 3), (1,) * 4, (0,) * 4), ((2, 3), (1, 1), (0, 1)))
    ]
    return write_artifact(
        *(folder, name, version, module or Tiny()),
        inputs=tuple(text_inputs(most=codec.max_tokens)),
        outputs=(output,),
        codec=codec,
        golden=golden,
        files={codec.tokenizer: tokenizer or tiny_tokenizer()},
    )
