"""Reads sentence-transformers' files: pooling, dense layers, length, prompt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from models.choices import Pooling, TextTask
from models.definitions.heads import Dense, Normalize
from models.definitions.huggingface.folder import FolderError, ModelFolder, cause

MODULES = "modules.json"
LENGTHS = tuple(
    f"sentence_{kind}_config.json"
    for kind in ["bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet"]
)
OURS = "sentence_transformers."  # the package; other types are the model's own code
PROMPTS = "config_sentence_transformers.json"
POOLINGS: Mapping[str, Pooling] = {"mean": "mean", "cls": "cls", "lasttoken": "last"}
# Older files have a flag for each pooling.
FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",  # nosec B105 # no password
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    each.__name__: each for each in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
}


@dataclass(frozen=True, slots=True)
class SentenceParts:
    """The content of the files; without files it is empty.

    Attributes:
        weights_in: the folder with the encoder, with a slash at its end; empty: the model's own.
        pooling: how tokens become one vector.
        layers: applied after the pooling: dense layers and normalisation.
        max_tokens: the longest input.
        prompt: the prefix of every text.
        activation: converts a reranker's output to a score, as a Python name; empty: not given.
    """

    weights_in: str = ""
    pooling: Pooling | None = None
    layers: tuple[nn.Module, ...] = ()
    max_tokens: int | None = None
    prompt: str = ""
    activation: str = ""


def sentence_parts(
    folder: ModelFolder, task: TextTask = "embed", *, allow_pickle: bool = False
) -> SentenceParts:
    """Read the files.

    A model for `rerank` has no further modules. `allow_pickle` applies to dense layers too.

    Raises:
        FolderError: if a file is broken, or requests something that cannot be served.
    """
    modules = folder.json(MODULES)
    if modules is None:
        return SentenceParts()
    try:
        chain = [(_kind(each["type"]), _below(each["path"])) for each in modules]
        (first, weights_in), *others = chain
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise FolderError(f"{MODULES} is not a list of modules with type and path") from error
    if first != "Transformer":
        raise FolderError(f"{MODULES} begins with {first}; only a Transformer can be served")
    pooling: Pooling | None = None
    include_prompt = True
    layers: list[nn.Module] = []
    for kind, below in others:
        config = folder.fields(f"{below}config.json")
        if task == "rerank":
            raise FolderError(
                f"{MODULES} has {kind}; for --task rerank only a Transformer is known"
            )
        if kind == "Pooling" and pooling is None:
            pooling, include_prompt = _pooling(config), config.get("include_prompt", True)
        elif kind == "Dense" and pooling is not None:
            layers.append(_dense(folder, below, config, allow_pickle=allow_pickle))
        elif kind == "Normalize" and pooling is not None:
            layers.append(Normalize())
        else:
            raise FolderError(f"{MODULES} has {kind} there; Pooling, Dense, Normalize are known")
    settings = folder.fields(PROMPTS)
    prompt = _prompt(settings)
    if prompt and not include_prompt:
        raise FolderError(
            "the pooling excludes the prompt (include_prompt: false), which is not supported"
        )
    lengths = ((name, folder.fields(f"{weights_in}{name}")) for name in LENGTHS)
    file, length = next(((name, fields) for name, fields in lengths if fields), ("", {}))
    if length.get("do_lower_case"):
        raise FolderError(f"{file} sets do_lower_case; do it in tokenizer.json's normalizer")
    longest = length.get("max_seq_length")
    if longest is not None and not (isinstance(longest, int) and longest > 0):
        raise FolderError(f"{file}: max_seq_length is malformed")
    activation = str(settings.get("activation_fn") or "")
    return SentenceParts(weights_in, pooling, tuple(layers), longest, prompt, activation)


def _kind(name: str) -> str:
    if not name.startswith(OURS):
        raise FolderError(
            f"{MODULES} has {name}, the model's own code, which is never run; {OURS}* are known"
        )
    return name.rpartition(".")[2]


def _below(path: str) -> str:
    return f"{path}/" if path else ""


def _pooling(config: Mapping[str, Any]) -> Pooling:
    mode = config.get("pooling_mode")
    modes = [name for flag, name in FLAGS.items() if config.get(flag)] if mode is None else mode
    names = [modes] if isinstance(modes, str) else list(modes)
    if len(names) != 1 or names[0] not in POOLINGS:
        raise FolderError(
            f"its pooling is {' and '.join(map(str, names)) or 'not said'}; "
            f"{', '.join(POOLINGS)} can be served, one at a time"
        )
    return POOLINGS[names[0]]


def _dense(
    folder: ModelFolder, below: str, config: Mapping[str, Any], *, allow_pickle: bool
) -> Dense:
    name = str(config.get("activation_function", "Tanh")).rpartition(".")[2]
    if name not in ACTIVATIONS or config.get("use_residual"):
        raise FolderError(
            f"{below}config.json: use_residual, or an activation {name!r} that is none of "
            f"{', '.join(ACTIVATIONS)}"
        )
    try:
        linear = nn.Linear(
            config["in_features"], config["out_features"], bias=config.get("bias", True)
        )
        weights = folder.weights(below, allow_pickle=allow_pickle)
        linear.load_state_dict({key.removeprefix("linear."): w for key, w in weights.items()})
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise FolderError(f"{below}: its layer does not fit its weights: {cause(error)}") from error
    return Dense(linear, ACTIVATIONS[name]())


def _prompt(config: Mapping[str, Any]) -> str:
    name = config.get("default_prompt_name")
    prompts = config.get("prompts") or {}
    if name is None:
        return ""
    if not isinstance(prompts, dict) or not isinstance(prompts.get(name), str):
        raise FolderError(f"{PROMPTS} has no prompt {name!r}, which is its default")
    return str(prompts[name])
