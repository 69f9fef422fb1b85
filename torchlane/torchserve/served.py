"""A served model as handlers use it: a function of tensors, `self.model(x)`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch


class Outputs(tuple[Any, ...]):
    """The outputs of a model, by place, by name, and as attributes.

    Args:
        values: in order.
        names: of the outputs.
    """

    names: Sequence[str] = ()

    def __new__(cls, values: Sequence[Any], names: Sequence[str]) -> Outputs:
        outputs = super().__new__(cls, values)
        outputs.names = names
        return outputs

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            if key not in self.names:
                raise KeyError(f"{key!r} is no output of the served model: {', '.join(self.names)}")
            key = self.names.index(key)
        return super().__getitem__(key)

    def __getattr__(self, name: str) -> Any:
        if name in self.names:
            return self[name]
        raise AttributeError(f"the served model has no output {name!r}: {', '.join(self.names)}")

    def __contains__(self, key: object) -> bool:
        return key in self.names if isinstance(key, str) else super().__contains__(key)

    def values(self) -> tuple[Any, ...]:
        """The outputs."""
        return (*self,)

    def items(self) -> zip[tuple[str, Any]]:
        """The outputs with their names."""
        return zip(self.names, self, strict=True)

    def keys(self) -> Sequence[str]:
        """The names of the outputs."""
        return self.names


class ServedModel:
    """Calls a served model.

    Args:
        name: of the model.
        call: sends items, each an array or a dict of arrays by name of the input; returns the
            outputs of each, by name.
        inputs: the names of its inputs, in order.
        outputs: the names of its outputs, in order.
        is_tensor: whether the network returns a tensor; else a tuple or a dict of tensors.
    """

    def __init__(
        self,
        name: str,
        call: Callable[[Sequence[Any]], Sequence[dict[str, Any]]],
        inputs: Sequence[str],
        outputs: Sequence[str],
        is_tensor: bool,
    ) -> None:
        self._name = name
        self._call = call
        self._inputs = inputs
        self._outputs = outputs
        self._is_tensor = is_tensor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs for a batch: a tensor, or `Outputs`.

        The inputs are tensors with the batch at axis 0, by place or by name; None is left out.

        Raises:
            TypeError, ValueError: these are no inputs of the model.
        """
        given = [*zip(self._inputs, args, strict=False), *kwargs.items()]
        arrays = {name: self._array(name, each) for name, each in given if each is not None}
        if len(args) > len(self._inputs) or arrays.keys() != set(self._inputs):
            got = ", ".join(arrays) if len(args) <= len(self._inputs) else f"{len(args)} tensors"
            raise TypeError(
                f"the served model {self._name} takes {', '.join(self._inputs)}, got {got}"
            )
        sizes = {len(each) for each in arrays.values()}
        if len(sizes) != 1 or 0 in sizes:
            raise ValueError(
                f"the inputs of the served model {self._name} need one and the same batch at axis "
                f"0, got {sorted(sizes)}"
            )
        (count,) = sizes
        if len(arrays) == 1:
            (items,) = (list(each) for each in arrays.values())
        else:
            items = [{name: each[at] for name, each in arrays.items()} for at in range(count)]
        results = self._call(items)
        tensors = [
            torch.from_numpy(np.stack([each[name] for each in results])) for name in self._outputs
        ]
        return tensors[0] if self._is_tensor else Outputs(tensors, self._outputs)

    forward = __call__

    def eval(self) -> ServedModel:
        """Itself, as a module."""
        return self

    def to(self, *_: Any, **__: Any) -> ServedModel:
        """Itself: the server has chosen its devices."""
        return self

    cpu = float = eval

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"self.model is the served model {self._name}, which can be called but has no "
            f"{name!r}; export the handler without --model to run the archive's own model in its "
            "process"
        )

    def _array(self, name: str, tensor: Any) -> Any:
        if not isinstance(tensor, torch.Tensor) or tensor.ndim == 0:
            raise TypeError(
                f"{name} of the served model {self._name} must be a tensor with the batch at axis "
                f"0, got a {type(tensor).__name__}"
            )
        return tensor.detach().cpu().numpy()
