"""Builds the definition of a model in Hugging Face's format."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from models.choices import Scores
from models.codec_specs import TextCodecSpec
from models.definitions.definition import Definition, HeldOut
from models.definitions.huggingface.encoder import EncoderOptions, config_of, text_model
from models.definitions.huggingface.folder import (
    CONFIG,
    TOKENIZER,
    FolderError,
    ModelFolder,
    cause,
)
from models.definitions.huggingface.sentences import SentenceParts, sentence_parts
from models.definitions.huggingface.towers import TextTower
from models.definitions.prose import sentences
from models.definitions.text_samples import TextSamples, mean_cosine, text_inputs
from models.inputs.tokenize import TextError, Tokenizer
from models.runtimes.forms import input_tensors
from models.tensors import Dimension, TensorSpec, stack

TOKENIZER_CONFIG = "tokenizer_config.json"
DEFAULT_MAX_TOKENS = 512
ADVICE = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) writes it as it is used"
ODD_TEXTS = (
    "CAFÉ Naïve",
    "東京 is far",
    "a\ttab,  two spaces ",
    "don't: 3,141.59_a/b?",
    "😀 e\u0301",
)
ACTIVATION_SCORES: Mapping[str, Scores] = {"Identity": "none", "Sigmoid": "sigmoid"}


def definition_of(folder: ModelFolder, options: EncoderOptions, description: str) -> Definition:
    """Read a folder and build the definition of its model.

    It needs config.json, safetensors and tokenizer.json.

    Raises:
        FolderError: if something is missing or broken, or does not fit the task.
    """
    parts = SentenceParts()
    if options.task in {"embed", "rerank"}:
        parts = sentence_parts(folder, options.task, allow_pickle=options.allow_pickle)
    fields = folder.fields(parts.weights_in + CONFIG)
    tokenizer = folder.read(parts.weights_in + TOKENIZER)
    if tokenizer is None:
        raise FolderError(f"there is no {TOKENIZER}; {ADVICE}")
    config = config_of(fields)
    whole, config = config, config if options.tower is None else config.text_config
    pad = _pad(config) if options.tower is None else _no_end(config)
    weights = folder.weights(parts.weights_in, allow_pickle=options.allow_pickle)
    module = text_model(whole, weights, options, parts)
    tokenizer_config = folder.fields(parts.weights_in + TOKENIZER_CONFIG)
    codec = _codec(module.get_submodule("encoder"), config, tokenizer_config, options, parts)
    _check_tokenizer(tokenizer, codec, config)
    theirs = _compare_tokenizers(tokenizer, codec, folder.path / parts.weights_in)
    if isinstance(module, TextTower) and module.length:
        _check_filling(theirs, module)
    inputs = text_inputs(
        codec,
        config.vocab_size,
        pad=pad,
        types=getattr(config, "type_vocab_size", 0),
    )
    samples = TextSamples(tokenizer, codec, inputs)
    output, codec = _output(module, samples, config, options, parts)

    def held_out() -> HeldOut:
        texts = samples.held_out_inputs()
        with torch.inference_mode():
            vectors = module(*input_tensors(texts, inputs))
        return HeldOut(texts, vectors.numpy(), mean_cosine)

    return Definition(
        description=description,
        inputs=inputs,
        outputs=(output,),
        codec=codec,
        build=lambda: module,
        train=None,
        random_inputs=samples.random_inputs,
        golden_inputs=samples.golden_inputs,
        example=samples.example,
        held_out=held_out if options.task == "embed" else None,
        files=lambda: {codec.tokenizer: tokenizer},
    )


def _codec(
    encoder: nn.Module,
    config: Any,
    tokenizer_config: Mapping[str, Any],
    options: EncoderOptions,
    parts: SentenceParts,
) -> TextCodecSpec:
    """Return the codec for what clients send."""
    positions = _positions(encoder, config)
    max_length = parts.max_tokens or tokenizer_config.get("model_max_length")
    limits = [
        each for each in (max_length, positions) if isinstance(each, int) and 0 < each <= 1_000_000
    ]
    max_tokens = options.max_tokens or min(limits, default=DEFAULT_MAX_TOKENS)
    if positions is not None and max_tokens > positions:
        raise FolderError(f"--max-tokens {max_tokens}: the model has {positions:,} positions")
    names = tokenizer_config.get("model_input_names") or ("token_type_ids",)
    if not isinstance(names, list | tuple):
        raise FolderError(f"{TOKENIZER_CONFIG}: model_input_names is malformed")
    has_types = getattr(config, "type_vocab_size", 0) > 1 and "token_type_ids" in names
    return TextCodecSpec(
        task=options.task,
        max_tokens=max_tokens,
        pairs=options.task == "rerank",
        prompt=parts.prompt,
        type_ids="token_type_ids" if has_types else None,
    )


def _pad(config: Any) -> int:
    """Return the token for padded places; any works, because they are masked."""
    pad = getattr(config, "pad_token_id", None)
    if pad is None or pad == -1:
        return 0
    if not isinstance(pad, int) or not 0 <= pad < config.vocab_size:
        raise FolderError(
            f"{CONFIG}: pad_token_id {pad} is not one of the {config.vocab_size:,} tokens"
        )
    return pad


def _no_end(config: Any) -> int:
    """Return a token for the padded places of a tower that looks for the end of a text.

    CLIP finds it as the first end token, or the largest one; a padded place must not be it.
    """
    return 1 if config.eos_token_id == 0 else 0


def _positions(encoder: nn.Module, config: Any) -> int | None:
    """Return the number of the model's positions; None: unlimited.

    Some models count from after the padding's index, so the indices up to it are not positions.
    """
    for name, layer in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(layer, nn.Embedding):
            return layer.num_embeddings - (
                0 if layer.padding_idx is None else layer.padding_idx + 1
            )
    most = getattr(config, "max_position_embeddings", None)
    return most if isinstance(most, int) and most > 0 else None


def _check_tokenizer(data: bytes, codec: TextCodecSpec, config: Any) -> None:
    try:
        tokenizer = Tokenizer(data, codec)
        special_ids = tokenizer.tokens("", "" if codec.pairs else None).ids
    except TextError as error:
        raise FolderError(str(error)) from error
    largest = max([tokenizer.vocabulary - 1, *special_ids.tolist()])
    if largest >= config.vocab_size:
        raise FolderError(
            f"{TOKENIZER} has the token id {largest:,}, but the model has {config.vocab_size:,} "
            "tokens: the file belongs to another model"
        )


def _compare_tokenizers(data: bytes, codec: TextCodecSpec, folder: Path) -> Any:
    """Return AutoTokenizer's own, which reads more files.

    Raises:
        FolderError: if it gives other tokens.
    """
    from transformers import AutoTokenizer  # noqa: PLC0415

    try:
        theirs = AutoTokenizer.from_pretrained(  # nosec B615 # nothing is downloaded
            folder, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        raise FolderError(f"AutoTokenizer rejects the folder: {cause(error)}; {ADVICE}") from error
    ours = Tokenizer(data, codec.model_copy(update={"max_tokens": 1_000_000}))
    samples = (*ODD_TEXTS, *sentences()[:50])
    for text, second in zip(samples, reversed(samples), strict=True):
        pair = second if codec.pairs else None
        try:
            tokens = ours.tokens(text, pair)
        except TextError as error:
            raise FolderError(f"{TOKENIZER}: {error}") from error
        encoding = theirs(codec.prompt + text, pair)
        types = encoding.get("token_type_ids") if codec.type_ids is not None else None
        if encoding["input_ids"] != tokens.ids.tolist() or types not in (
            None,
            tokens.type_ids.tolist(),
        ):
            raise FolderError(
                f"AutoTokenizer and {TOKENIZER} give different tokens for {text[:40]!r}, because "
                f"of other files such as {TOKENIZER_CONFIG}; {ADVICE}"
            )
    return theirs


def _check_filling(theirs: Any, tower: TextTower) -> None:
    """Raise FolderError unless AutoTokenizer fills texts with the tower's token, at their end."""
    try:
        ids = theirs("a")["input_ids"]
        padded_ids = theirs("a", padding="max_length", max_length=tower.length)["input_ids"]
    except Exception as error:
        raise FolderError(f"AutoTokenizer cannot pad texts: {cause(error)}") from error
    if padded_ids != [*ids, *[tower.pad] * (tower.length - len(ids))]:
        raise FolderError(
            f"AutoTokenizer pads a text as {str(padded_ids)[:60]}, but the model learned from "
            f"texts that end with token {tower.pad}: correct pad_token and padding_side in "
            f"{TOKENIZER_CONFIG}"
        )


def _output(
    module: nn.Module,
    samples: TextSamples,
    config: Any,
    options: EncoderOptions,
    parts: SentenceParts,
) -> tuple[TensorSpec, TextCodecSpec]:
    """Return the output, with its size from a forward, and the codec with labels and scores."""
    codec, per_token = samples.codec, options.task == "classify-tokens"
    first = stack([samples.golden_inputs()[0]])
    try:
        with torch.inference_mode():
            answer = module(*input_tensors(first, samples.inputs))
    except Exception as error:
        raise FolderError(f"the model fails on a sentence: {cause(error)}") from error
    tokens = (Dimension(name="seq", least=1, most=codec.max_tokens),) if per_token else ()
    shape = (-1, -1, answer.shape[-1]) if per_token else (-1, answer.shape[-1])
    name = "embedding" if options.task == "embed" else "scores"
    output = TensorSpec(name=name, dtype="float32", shape=shape, dimensions=tokens)
    if options.task == "embed":
        return output, codec
    if options.task == "rerank":
        if answer.shape[-1] != 1:
            raise FolderError(
                f"the model gives {answer.shape[-1]} scores, but --task rerank needs one for each "
                "pair; use --task classify"
            )
        return output, codec.model_copy(update={"scores": _rerank_scores(config, parts)})
    labels, scores = labels_of(config, answer.shape[-1])
    return output, codec.model_copy(update={"labels": labels, "scores": scores})


def labels_of(config: Any, count: int) -> tuple[tuple[str, ...], Scores]:
    """Return the labels of a classifier, and how its output becomes their scores.

    Raises:
        FolderError: if the configuration does not have a label for each of `count` numbers.
    """
    try:
        labels = tuple(str(config.id2label[index]) for index in range(count))
    except KeyError as error:
        raise FolderError(f"{CONFIG}: id2label is malformed: it has no label {error}") from error
    if len(set(labels)) < len(labels):
        raise FolderError(f"{CONFIG}: labels must differ, id2label has {', '.join(labels[:9])}")
    several = config.problem_type == "multi_label_classification"
    scores: Scores = "sigmoid" if several or len(labels) == 1 else "softmax"
    return labels, "none" if config.problem_type == "regression" else scores


def _rerank_scores(config: Any, parts: SentenceParts) -> Scores:
    """Return what sentence-transformers' CrossEncoder applies: a sigmoid, or as its files say."""
    settings = getattr(config, "sentence_transformers", None) or {}
    if not isinstance(settings, Mapping):
        raise FolderError(f"{CONFIG}: sentence_transformers is malformed")
    old = getattr(config, "sbert_ce_default_activation_function", None)
    name = str(parts.activation or settings.get("activation_fn") or old or "Sigmoid")
    kind = name.rpartition(".")[2]
    if kind not in ACTIVATION_SCORES:
        raise FolderError(
            f"unknown score activation {name}; known are: {', '.join(ACTIVATION_SCORES)}"
        )
    return ACTIVATION_SCORES[kind]
