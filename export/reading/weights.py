"""Loads weights from what trainers write: a state_dict, a checkpoint, or a safetensors file."""

from __future__ import annotations

import pickle  # nosec B403 # only the name of an error
import warnings
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from export.errors import UsageError
from models.system.extras import check_extra

COMPILED = "_orig_mod."  # what `torch.compile` inserts into names, for each compiled module
DEPTH = 2  # how deep in a checkpoint weights are searched
SHOWN = 3  # names in a message
ALONE = "save only the weights: torch.save(model.state_dict(), FILE)"


class Candidate(NamedTuple):
    """Weights of a file that have the names of a model's.

    Attributes:
        at: where they are in the file; empty: the file is the state_dict itself.
        prefix: what precedes each name.
        weights: name -> tensor, in the model's names.
        others: names in the same place that are not under the prefix.
    """

    at: str
    prefix: str
    weights: Mapping[str, torch.Tensor]
    others: tuple[str, ...]

    @property
    def key(self) -> str:
        """Where they are, with the prefix: what chooses them."""
        return ".".join(filter(None, (self.at, self.prefix.removesuffix("."))))


class _Placeholder:
    """Takes the place of every object in a checkpoint that is neither a tensor nor plain data."""

    def __new__(cls, *args: object) -> Any:
        # What is made without arguments may get items, and torch gives these to its own dict only.
        return super().__new__(cls) if args else OrderedDict()

    def __init__(self, *args: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...


def read(file: Path) -> Mapping[str, Any]:
    """Read a checkpoint, without the objects in it that are neither tensors nor plain data.

    Runs no code in it.

    Raises:
        UsageError: if it cannot be read.
    """
    try:
        with file.open("rb") as stream:
            is_safetensors = stream.read(9)[8:] == b"{"
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    content = _safetensors(file) if is_safetensors else _of_torch(file)
    if isinstance(content, _Placeholder):
        raise UsageError(f"{file} is a whole object, whose code would be needed: {ALONE}")
    if not isinstance(content, dict):
        raise UsageError(f"{file} has no weights by name, but a {type(content).__name__}: {ALONE}")
    return content


def load(content: Mapping[str, Any], file: Path, module: nn.Module, at: str | None = None) -> str:
    """Load a checkpoint's weights into a model.

    Args:
        content: from `read`.
        file: named in messages.
        module: all its weights and buffers are replaced.
        at: where in the checkpoint the weights are, if it has several that fit.

    Returns:
        where they were found, in words.

    Raises:
        UsageError: if no weights fit, or several do.
    """
    state = module.state_dict()
    places = list(_places(content))
    if not places:
        raise UsageError(f"{file} has no weights by name: {ALONE}")
    candidates = [
        each for place, weights in places for each in _under_prefixes(place, weights, state)
    ]
    if at is not None:
        available = ", ".join(filter(None, (each.key for each in candidates))) or "none"
        candidates = [each for each in candidates if at in (each.key, each.at)]
        if not candidates:
            raise UsageError(
                f"--checkpoint-key {at}: {file} has no weights there; it has: {available}"
            )
    problems = [_problem(each, module, state) for each in candidates]
    fitting = [each for each, problem in zip(candidates, problems, strict=True) if problem is None]
    if not fitting:
        nearest, problem = max(
            zip(candidates, problems, strict=True),
            key=lambda each: len(each[0].weights.keys() & state.keys()),
        )
        raise UsageError(f"{_describe(file, nearest)}: does not fit the model: {problem}")
    if len(fitting) > 1:
        keys = ", ".join(each.key for each in fitting)
        raise UsageError(
            f"{file} has several weights that fit ({keys}): choose with --checkpoint-key"
        )
    (match,) = fitting
    module.load_state_dict(dict(match.weights), strict=False)  # ties may be missing
    return _describe(file, match)


def _safetensors(file: Path) -> dict[str, torch.Tensor]:
    check_extra(str(file), "huggingface", ("safetensors",))
    from safetensors import SafetensorError  # noqa: PLC0415 # an extra
    from safetensors.torch import load_file  # noqa: PLC0415

    try:
        return load_file(file)
    except SafetensorError as error:
        raise UsageError(f"{file} is a damaged safetensors file: {error}") from error


def _of_torch(file: Path) -> Any:
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except Exception:  # a file of before torch 1.6, or none: `load` finds out
        unknown = []
    stands_in: list[Any] = [(_Placeholder, name) for name in unknown]
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(stands_in):
            warnings.simplefilter("ignore")  # about other kinds of files
            return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        what = f" ({', '.join(sorted(unknown)[:SHOWN])})" if unknown else ""
        raise UsageError(
            f"{file} has more than tensors and plain data{what}, or is damaged: {ALONE}"
        ) from error
    except Exception as error:  # damaged bytes make torch raise errors of many classes
        raise UsageError(f"{file} is not a checkpoint, or is damaged") from error


def _places(
    content: Mapping[str, Any], at: str = "", depth: int = DEPTH
) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
    """Yield each dict in the content that has tensors by name, and where it is."""
    own = {name: each for name, each in content.items() if isinstance(each, torch.Tensor)}
    if own and all(isinstance(name, str) for name in own):
        yield at, {name.replace(COMPILED, ""): each for name, each in own.items()}
    if depth:
        for name, each in content.items():
            if isinstance(each, dict) and isinstance(name, str):
                yield from _places(each, f"{at}.{name}" if at else name, depth - 1)


def _under_prefixes(
    at: str, weights: Mapping[str, torch.Tensor], state: Mapping[str, torch.Tensor]
) -> Iterator[Candidate]:
    """Yield the weights under each of the prefixes that have the most of the model's names."""
    prefixes = Counter({"": 0})
    for name in weights:
        parts = name.split(".")
        for at_part in range(len(parts)):
            end = ".".join(parts[at_part:])
            if end in state:
                prefixes[name.removesuffix(end)] += 1
    most = max(prefixes.values())
    for best in (prefix for prefix, count in prefixes.items() if count == most):
        under = {
            name.removeprefix(best): each for name, each in weights.items() if name.startswith(best)
        }
        others = tuple(name for name in weights if not name.startswith(best))
        yield Candidate(at, best, under, others)


def _problem(
    candidate: Candidate, module: nn.Module, state: Mapping[str, torch.Tensor]
) -> str | None:
    """Return what differs between the weights and the model's; None: nothing."""
    missing = [
        name for name in _required_names(module, candidate.weights) if name not in candidate.weights
    ]
    unknown = [name for name in candidate.weights if name not in state]
    shapes = [
        f"{name} is {list(candidate.weights[name].shape)} in the file and {list(each.shape)} "
        "in the model"
        for name, each in state.items()
        if name in candidate.weights and candidate.weights[name].shape != each.shape
    ]
    problems = []
    if missing:
        problems.append(f"it lacks {len(missing)} of {len(state)} tensors ({_some(missing)})")
    if unknown:
        problems.append(f"the model has no {_some(unknown)}")
    if shapes:
        problems.append(_some(shapes))
    return "; ".join(problems) or None


def _required_names(module: nn.Module, there: Mapping[str, torch.Tensor]) -> Iterator[str]:
    """Yield the names of the model's tensors, without those that share the memory of one there."""
    tensors = module.state_dict(keep_vars=True)
    present = {id(each) for name, each in tensors.items() if name in there}
    for name, each in tensors.items():
        if name in there or id(each) not in present:
            yield name


def _describe(file: Path, candidate: Candidate) -> str:
    text = f"{candidate.at} of {file.name}" if candidate.at else file.name
    if candidate.prefix:
        text += f", names without {candidate.prefix!r}"
    if candidate.others:
        text += f", without {_some(candidate.others)}"
    return text


def _some(names: list[str] | tuple[str, ...]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
