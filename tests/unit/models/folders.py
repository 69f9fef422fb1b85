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


SIDE = 32  # pixels of pictures
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": SIDE,
    "patch_size": 8,
}


def save_vit(folder: Path, kind: str, **changes: Any) -> tuple[Any, Any]:
    """Save a model of pictures and its image processor; returns both."""
    model = save(folder, kind, transformers.ViTConfig(**VISION, **changes))
    return model, _processor(folder, "ViT", size={"height": SIDE, "width": SIDE})


def save_clip(folder: Path, *, end: int = WORDS.index("[SEP]")) -> tuple[Any, Any]:
    """Save a CLIP and its image processor; returns both. Texts end with the token `end`."""
    text = _text() | {"eos_token_id": end}
    config = transformers.CLIPConfig(text_config=text, vision_config=VISION, projection_dim=16)
    cut = {"height": SIDE, "width": SIDE}
    model = save(folder, "CLIPModel", config)
    return model, _processor(folder, "CLIP", size={"shortest_edge": SIDE}, crop_size=cut)


def save_siglip(folder: Path) -> tuple[Any, Any]:
    """Save a SigLIP and its image processor; returns both."""
    text = _text() | {"projection_size": VISION["hidden_size"]}
    config = transformers.SiglipConfig(text_config=text, vision_config=VISION)
    model = save(folder, "SiglipModel", config)
    return model, _processor(folder, "Siglip", size={"height": SIDE, "width": SIDE})


def _text() -> dict[str, Any]:
    fields: dict[str, Any] = bert_config().to_dict()
    fields.pop("model_type")
    return fields | {"pad_token_id": 0, "bos_token_id": WORDS.index("[CLS]")}


def _processor(folder: Path, kind: str, **fields: Any) -> Any:
    """Save an image processor; the one that needs no torchvision."""
    made = getattr(transformers, f"{kind}ImageProcessorPil")(**fields)
    made.save_pretrained(folder)
    return made
