"""Tiny text models of every task, with the tokenizer of `tests/texts.py`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.choices import Scores, TextTask
from models.inputs.tokenize import Tokenizer
from models.tensors import TensorSpec
from tests.artifacts import write_artifact
from tests.texts import WORDS, text_codec, text_inputs, tiny_tokenizer

SIZE = 4  # of a vector
LABELS = ("animal", "place", "other")


class Words(nn.Module):
    """Token ids [n, s], mask [n, s], type ids [n, s] -> the mean of a row of each token [n, size].

    The rows of tokens of the second text have the other sign.
    """

    def __init__(self, size: int, *, unit: bool = False) -> None:
        super().__init__()
        torch.manual_seed(size)
        self.table = nn.Embedding(len(WORDS), size)
        self.unit = unit

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        """See the class."""
        weights = (attention_mask * (1 - 2 * token_type_ids)).unsqueeze(2).to(torch.float32)
        summed = (self.table(input_ids) * weights).sum(1)
        mean: torch.Tensor = summed / attention_mask.sum(1, keepdim=True)
        return nn.functional.normalize(mean, dim=1) if self.unit else mean


def write_text_model(
    folder: Path,
    name: str,
    task: TextTask,
    size: int,
    version: int = 1,
    *,
    scores: Scores = "none",
    labels: Sequence[str] | None = None,
) -> None:
    """Write a model of this task, whose first output has this size."""
    inputs = tuple(text_inputs())
    given: dict[str, Any] = {"labels": tuple(labels)} if labels is not None else {}
    codec = text_codec(task=task, pairs=task == "rerank", scores=scores, **given)
    tokenizer = Tokenizer(tiny_tokenizer(), codec)
    second = "london" if codec.pairs else None
    tokens = [tokenizer.tokens(text, second) for text in ("cat", "a dog")]
    write_artifact(
        *(folder, name, version, Words(size, unit=task == "embed").eval()),
        inputs=inputs,
        outputs=(TensorSpec(name="out", dtype="float32", shape=(-1, size)),),
        codec=codec,
        golden=[tokenizer.arrays(each) for each in tokens],
        files={codec.tokenizer: tiny_tokenizer()},
    )


def write_text_models(folder: Path) -> None:
    """Write `embed` (twice), `classify` (a softmax), `logits` (none) and `rerank` (a sigmoid)."""
    write_text_model(folder, "embed", "embed", SIZE)
    write_text_model(folder, "embed", "embed", SIZE, 2)
    write_text_model(folder, "classify", "classify", 3, scores="softmax", labels=LABELS)
    write_text_model(folder, "logits", "classify", 3, labels=LABELS)
    write_text_model(folder, "rerank", "rerank", 1, scores="sigmoid")
