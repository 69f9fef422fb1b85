"""Models with a tower for texts and one for pictures, such as CLIP and SigLIP; and of pictures."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import nn

from models.definitions.heads import Normalize

# How a picture becomes one vector: the model's scores, its features in the space that it shares
# with texts, what its pooler gives, its first token, or the mean of all tokens.
Answer = Literal["logits", "features", "pooler", "cls", "mean"]


def has_towers(config: Any, kind: Any) -> bool:
    """Whether texts and pictures of a model have vectors in one space."""
    return (
        hasattr(config, "text_config")
        and hasattr(config, "vision_config")
        and hasattr(kind, "get_text_features")
        and hasattr(kind, "get_image_features")
    )


class TextTower(nn.Module):
    """The tower for texts, int64 inputs [n, s] -> one vector per text [n, d].

    SigLIP learned from texts that were padded to its number of positions, without a mask: each text
    is, whatever the batch.

    Args:
        encoder: a model of transformers with two towers.
        normalize: whether to scale vectors to length 1.
    """

    def __init__(self, encoder: Any, *, normalize: bool) -> None:
        super().__init__()
        self.encoder = _without(encoder, ("vision", "visual"))
        self.head = Normalize() if normalize else nn.Identity()
        text = encoder.config.text_config
        self.pad = int(text.pad_token_id or 0)
        pads = encoder.config.model_type.startswith("siglip")
        self.length = int(text.max_position_embeddings) if pads else 0

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the vectors; omit `token_type_ids` for towers that do not accept them."""
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if self.length:
            ids = torch.where(attention_mask == 1, input_ids, self.pad)
            pads = ids.new_full((1, self.length), self.pad).expand(ids.shape[0], -1)
            inputs = {"input_ids": torch.cat((ids, pads), dim=1)[:, : self.length]}
        vectors: torch.Tensor = self.head(self.encoder.get_text_features(**inputs).pooler_output)
        return vectors


class PictureModel(nn.Module):
    """A model of pictures of transformers: float32 [n, 3, h, w] -> [n, d].

    Args:
        encoder: the model.
        answer: what of its outputs is the answer.
        normalize: whether to scale vectors to length 1.
    """

    def __init__(self, encoder: Any, answer: Answer, *, normalize: bool) -> None:
        super().__init__()
        self.encoder = _without(encoder, ("text",)) if answer == "features" else encoder
        self.answer = answer
        self.head = Normalize() if normalize else nn.Identity()

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        if self.answer == "features":
            vectors = self.encoder.get_image_features(pixel_values=pixel_values).pooler_output
        else:
            outputs = self.encoder(pixel_values=pixel_values)
            if self.answer == "logits":
                vectors = outputs.logits
            elif self.answer == "pooler":
                vectors = outputs.pooler_output.flatten(1)
            else:
                tokens = outputs.last_hidden_state  # [n, t, d]
                if tokens.ndim != 3:
                    raise ValueError("the model has no tokens, which --pooling needs")
                vectors = tokens[:, 0] if self.answer == "cls" else tokens.mean(1)
        answer: torch.Tensor = self.head(vectors)
        return answer


def _without(encoder: Any, prefixes: tuple[str, ...]) -> Any:
    """Remove the other tower, whose weights would be in every file."""
    for name, _ in list(encoder.named_children()):
        if name.startswith(prefixes):
            setattr(encoder, name, None)
    return encoder
