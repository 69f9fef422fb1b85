"""A transformers model with its weights, and the head for its task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from models.choices import Pooling, TextTask, Tower
from models.definitions.heads import Normalize, TokenPool
from models.definitions.huggingface.folder import CONFIG, MISSING, FolderError, Weights, cause
from models.definitions.huggingface.sentences import SentenceParts
from models.definitions.huggingface.towers import TextTower

POOLER = "pooler."  # a layer that some encoders have and no task needs
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
CODE = {
    f"{start}{name}_implementation" for start in ("", "_") for name in ("attn", "experts")
}  # fields of config.json that can name code to download and run
# Task -> the transformers class that selects the architecture.
CLASSES: Mapping[TextTask, str] = {
    "embed": "AutoModel",
    "classify": "AutoModelForSequenceClassification",
    "rerank": "AutoModelForSequenceClassification",
    "classify-tokens": "AutoModelForTokenClassification",
}
# Of saved classes whose heads may have weights of the same names -> the task that fits.
HEADS: Mapping[str, TextTask] = {
    "ForSequenceClassification": "classify",
    "ForTokenClassification": "classify-tokens",
}


@dataclass(frozen=True, slots=True)
class EncoderOptions:
    """The task of the model, and options that override its files.

    Attributes:
        task: what it answers.
        pooling: for `embed`; None: from its files, else the mean.
        normalize: for `embed`; None: from its files, else yes.
        max_tokens: of one item; None: from its files.
        allow_pickle: read weights from a pickle of tensors.
        tower: for a model of two towers: which one.
    """

    task: TextTask
    pooling: Pooling | None = None
    normalize: bool | None = None
    max_tokens: int | None = None
    allow_pickle: bool = False
    tower: Tower | None = None


class TextModel(nn.Module):
    """A transformers encoder and its head: int64 inputs [n, s] -> one tensor.

    Args:
        encoder: a transformers model.
        pool: combines the tokens' vectors to one; None: the encoder's first output is the answer.
        layers: applied after the pooling.
    """

    def __init__(self, encoder: nn.Module, pool: TokenPool | None, layers: tuple[nn.Module, ...]):
        super().__init__()
        self.encoder = encoder
        self.pool = pool
        self.layers = nn.ModuleList(layers)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the answer; omit `token_type_ids` for encoders that do not accept them."""
        types = {} if token_type_ids is None else {"token_type_ids": token_type_ids}
        vectors: torch.Tensor = self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, **types
        )[0]
        if self.pool is not None:
            vectors = self.pool(vectors, attention_mask)
        for layer in self.layers:
            vectors = layer(vectors)
        return vectors


def config_of(fields: Mapping[str, Any]) -> Any:
    """Return transformers' configuration object.

    Args:
        fields: of config.json.

    Raises:
        FolderError: if transformers is missing, or does not know the model type.
    """
    try:
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: PLC0415
    except ImportError as error:
        raise FolderError(MISSING) from error
    kind = str(fields.get("model_type"))
    if not fields or kind not in CONFIG_MAPPING:
        problem = f"names the model type {kind!r}" if fields else "is missing"
        raise FolderError(
            f"{CONFIG} {problem}; transformers itself must have the model type: a model's own "
            "code is never run"
        )
    if "quantization_config" in fields:
        raise FolderError(f"{CONFIG}: its weights are quantized; adopt unquantized ones")
    try:
        config = CONFIG_MAPPING[kind].from_dict(_without_code(fields))
    except Exception as error:  # transformers may raise anything
        raise FolderError(f"transformers rejects {CONFIG}: {cause(error)}") from error
    config.use_cache = False  # a decoder's cache costs time and has no use here
    return config


def _without_code(fields: Any) -> Any:
    """Remove fields, at every depth, that select code for attention or experts."""
    if not isinstance(fields, Mapping):
        return fields
    return {name: _without_code(each) for name, each in fields.items() if name not in CODE}


def text_model(
    config: Any, weights: Weights, options: EncoderOptions, parts: SentenceParts
) -> nn.Module:
    """Build the encoder with its weights and its head, in float32 and eval mode.

    Returns:
        a TextModel, or a TextTower.

    Raises:
        FolderError: if the model type or the weights do not fit the task.
    """
    name = CLASSES[options.task]
    saved_class = architecture(config)
    if options.task == "embed" and (
        config.is_encoder_decoder or saved_class.endswith("EncoderModel")
    ):
        name = "AutoModelForTextEncoding"
    encoder, _ = load_encoder(name, config, weights, options.task)
    if options.tower is not None:
        return TextTower(encoder, normalize=options.normalize is not False).eval()
    if options.task != "embed":
        return TextModel(encoder, None, ()).eval()
    layers = parts.layers
    while layers and isinstance(layers[-1], Normalize):
        layers = layers[:-1]
    normalize = options.normalize
    if normalize is None:
        normalize = parts.pooling is None or len(layers) < len(parts.layers)
    if normalize:
        layers = (*layers, Normalize())
    pool = TokenPool(options.pooling or parts.pooling or "mean")
    return TextModel(encoder, pool, layers).eval()


def architecture(config: Any) -> str:
    """Return the class of transformers that was saved; empty: the configuration does not say."""
    return str((config.architectures or [""])[0])


def class_of(name: str, config: Any) -> Any:
    """Return the class that transformers chooses for a model type; None: it has none.

    `name` is that of an `AutoModel` class.
    """
    import transformers  # noqa: PLC0415

    classes = getattr(transformers, name)._model_mapping.get(type(config), None)
    return classes[0] if isinstance(classes, tuple) else classes


def load_encoder(name: str, config: Any, weights: Weights, task: TextTask) -> tuple[Any, bool]:
    """Build a model of transformers with its weights, in float32.

    `name` is that of the `AutoModel` class that chooses the architecture.

    Returns:
        the model, and whether its pooler has weights, unless it has none.

    Raises:
        FolderError: if transformers does not have the architecture, or the weights do not fit.
    """
    import transformers  # noqa: PLC0415

    if name in (getattr(config, "auto_map", None) or ()):
        raise FolderError(
            f"{CONFIG}: {name} is the model's own code (auto_map), which is never run; "
            "remove the entry only if transformers' own class gives the same answers"
        )
    kind = class_of(name, config)
    if kind is None:
        raise FolderError(
            f"transformers has no {name} for the model type {config.model_type!r}; "
            "choose another --task"
        )
    _check_head(kind.__name__, config, task)
    # Its log lines and progress bars would mix with export's; errors still raise.
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    _check_weights(weights, config)
    try:
        model, loading = kind.from_pretrained(
            None, config=config, state_dict=weights, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:
        raise FolderError(f"transformers rejects the weights: {cause(error)}") from error
    missing = sorted(key for key in loading["missing_keys"] if not key.startswith(POOLER))
    if missing or loading["mismatched_keys"]:
        missing_text = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        raise FolderError(
            f"the weights have no {missing_text or 'layers of these sizes'}, which {kind.__name__} "
            f"needs for --task {task}: they were saved for something else, "
            f"{_architecture_text(config)}"
        )
    _check_encoder(model, weights, loading["unexpected_keys"])
    return model, len(missing) == len(loading["missing_keys"])


def _check_head(name: str, config: Any, task: TextTask) -> None:
    """Raise FolderError if the weights are those of another head, whose names may be the same."""
    saved_class = architecture(config)
    for head, right in HEADS.items():
        if saved_class.endswith(head) and name.endswith(tuple(HEADS)) and not name.endswith(head):
            raise FolderError(
                f"the weights are those of a {saved_class}, not of the {name} that --task {task} "
                f"needs; use --task {right}"
            )


def _check_weights(weights: Weights, config: Any) -> None:
    """Raise FolderError if weights are quantized, or too few for the model's layers."""
    for name, weight in weights.items():
        if weight.dtype not in FLOATS and weight.dtype not in {torch.int64, torch.bool}:
            raise FolderError(
                f"{name} is {weight.dtype}: quantized weights are not supported; adopt others"
            )
    layers = getattr(config, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > len(weights):
        raise FolderError(
            f"{CONFIG} says {layers:,} layers, but the weights have {len(weights):,} tensors"
        )


def _check_encoder(encoder: Any, weights: Weights, unexpected_names: Iterable[str]) -> None:
    """Raise FolderError if weights of the encoder are missing or not finite.

    Heads, poolers and buffers may be missing.
    """
    base = encoder.base_model
    own = {name for name, _ in base.named_children()} - {POOLER.rstrip(".")}
    for name in sorted(unexpected_names):
        inner = name.removeprefix(f"{base.base_model_prefix}.")
        is_buffer = name.endswith("inv_freq") or not weights[name].is_floating_point()
        if inner.partition(".")[0] in own and not is_buffer:
            raise FolderError(
                f"the model has no place for the weights {name}: they do not fit {CONFIG}"
            )
    for name, parameter in encoder.named_parameters():
        if not torch.isfinite(parameter).all():
            raise FolderError(f"the weights {name} are not finite numbers")


def _architecture_text(config: Any) -> str:
    return f"config.json says {', '.join(config.architectures or ()) or 'no architecture'}"
