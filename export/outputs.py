"""What a model gives, whatever it wraps it in: names for it, and a module that gives a tuple.

A server takes a tensor, or a tuple of tensors in the manifest's order. A model may also give a dict
or a NamedTuple, and the command may name, pick and order what it gives: then a module is put around
it, in TorchScript too, which does that and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from export.errors import ExportError, UsageError, reason
from models.tensors import Name

Made = dict[str, torch.Tensor]

FLAT = "give all tensors in one tuple or dict, without a second level"
PER_ITEM = "give a tensor with one number for each item"
ADVICE: Mapping[type, str] = {
    **dict.fromkeys((dict, list, tuple), FLAT),
    **dict.fromkeys((bool, float, int), PER_ITEM),
    str: "give the index of a class, and name the classes with --labels",
    type(None): "leave it out",
}
# As torchvision's detectors do: a list of one dict for each picture.
DETECTOR = (
    "the model gives a list of dicts, and an answer needs tensors with one row for each item. Put "
    "a module around it that pads what it finds to a fixed number, such as boxes [n, 100, 4], "
    "scores [n, 100] and their count [n], and script that"
)


class _Around(nn.Module):
    """Gets its `forward` once it is scripted."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner


def is_name(text: object) -> bool:
    """Whether a manifest takes it for a name."""
    try:
        TypeAdapter(Name).validate_python(text)
    except ValidationError:
        return False
    return True


def by_name(made: object, wanted: Sequence[str] = ()) -> Made:
    """What a forward gave, by name.

    Args:
        made: a tensor, or several in a tuple, list, dict or NamedTuple.
        wanted: of a dict or NamedTuple, which of its own names to take; else a name for each
            tensor. Empty: all of them, under their own names, or as output_0 and so on.

    Raises:
        UsageError: if the names do not fit.
        ExportError: if it is something else than tensors; the message says what to change.
    """
    own = tuple(made) if isinstance(made, dict) else getattr(made, "_fields", None)
    if isinstance(made, list) and any(isinstance(each, dict) for each in made):
        raise ExportError(DETECTOR)
    values = list(made.values() if isinstance(made, dict) else _several(made))
    if not values:
        raise ExportError("the model gives nothing; it must give a tensor, or several")
    if own is None:
        return _tensors(dict(zip(_names(len(values), wanted), values, strict=True)))
    parts = dict(zip(own, values, strict=True))
    if strays := [name for name in wanted if name not in parts]:
        raise UsageError(f"--output {strays[0]}: the model gives {', '.join(map(str, own))}")
    return _tensors({name: parts[name] for name in wanted or own})


def ways(
    module: torch.jit.ScriptModule, found: Sequence[str], order: Sequence[str], *, picked: bool
) -> tuple[str, ...] | None:
    """How TorchScript says each output of what the model gave; None where it may stay as it is.

    Args:
        module: the model.
        found: the names from `by_name`.
        order: the same names, in the order in which they are to be served.
        picked: the names were wanted, so a NamedTuple may have more.

    Raises:
        ExportError: if the model may give something of another kind at another time.
    """
    forward: Any = module.forward
    (returned,) = (each.type for each in forward.schema.returns)
    if returned.kind() == "DictType":
        return tuple(f"made[{name!r}]" for name in order)
    if returned.kind() not in ("TensorType", "TupleType", "ListType"):
        raise ExportError(
            f"the model gives {returned.annotation_str}: it must always give a tensor, or always a "
            "tuple, a list or a dict of tensors"
        )
    is_named = returned.kind() == "TupleType" and not returned.annotation_str.startswith("Tuple[")
    if is_named and picked:
        return tuple(f"made.{name}" for name in order)
    if list(order) == list(found):
        return None
    return tuple(f"made[{found.index(name)}]" for name in order)


def around(
    module: torch.jit.ScriptModule, inputs: int, given: Sequence[str]
) -> torch.jit.ScriptModule:
    """A module that calls the model and gives what `ways` says.

    Args:
        module: the model.
        inputs: how many tensors it takes.
        given: from `ways`.

    Raises:
        ExportError: if TorchScript cannot put one into the other.
    """
    arguments = [f"x{index}" for index in range(inputs)]
    typed = "".join(f", {name}: Tensor" for name in arguments)
    lines = (
        f"def forward(self{typed}):",
        f"    made = self.inner({', '.join(arguments)})",
        f"    return {', '.join(given)}\n",
    )
    try:
        outer: torch.jit.ScriptModule = torch.jit.script(_Around(module).eval())
        outer.define("\n".join(lines))
    except RuntimeError as error:
        raise ExportError(f"the model's outputs cannot be told apart: {reason(error)}") from error
    return outer


def _several(made: object) -> Sequence[object]:
    return made if isinstance(made, tuple | list) else (made,)


def _names(count: int, wanted: Sequence[str]) -> Sequence[str]:
    if not wanted:
        return ("output",) if count == 1 else [f"output_{index}" for index in range(count)]
    if len(wanted) != count:
        raise UsageError(
            f"--output: {len(wanted)} given, the model gives {count}; give --output once for each, "
            "in this order"
        )
    return wanted


def _tensors(parts: Mapping[Any, Any]) -> Made:
    for name, value in parts.items():
        if not isinstance(value, torch.Tensor):
            raise ExportError(
                f"the model gives {type(value).__name__} for {name!r}, and an answer is made of "
                f"tensors only: {ADVICE.get(type(value), 'give a tensor')}. Put a module around "
                "the model that does, and script that"
            )
        if value.is_sparse:
            raise ExportError(f"{name!r} is sparse: call to_dense() on it in the model")
        if not is_name(name):
            raise ExportError(
                f"the model calls an output {name!r}, and a name has 1 to 64 letters, digits, _ "
                "and -: rename it in the model, or pick others with --output"
            )
    return dict(parts)
