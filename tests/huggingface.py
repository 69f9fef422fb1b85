"""Small folders in Hugging Face's format, with random weights, as transformers saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.texts import WORDS, tiny_tokenizer

POSITIONS = 40


def bert_config(**changes: Any) -> Any:
    """A BERT of two layers."""
    fields: dict[str, Any] = {
        "vocab_size": len(WORDS),
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "max_position_embeddings": POSITIONS,
    }
    return transformers.BertConfig(**(fields | changes))


def save(folder: Path, kind: str = "BertModel", config: Any = None, **options: Any) -> Any:
    """Save a model of this class of transformers with a tokenizer; returns it, in eval mode."""
    torch.manual_seed(3)
    model = getattr(transformers, kind)(bert_config() if config is None else config).eval()
    for name, weight in model.named_parameters():  # untouched, it answers nearly the same to all
        torch.nn.init.normal_(weight, 1.0 if "LayerNorm.weight" in name else 0.0, 0.3)
    model.save_pretrained(folder, **options)
    (folder / "tokenizer.json").write_bytes(tiny_tokenizer())
    fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(fast))
    return model
