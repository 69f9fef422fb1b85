"""Copies a module with other weights or layers."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import nn


def replace_layers(module: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Return a copy with other layers, which shares the weights of those that stay.

    Args:
        module: itself and its layers at any depth are candidates.
        make: returns the replacement of a layer; None: keep it, and search inside it.

    Raises:
        Exception: what an object in the module raises if it cannot be copied, or `make`.
    """
    return _replace(_copy(module, lambda weight: weight), make)


def convert_to(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy whose floating-point weights have another dtype, without a whole copy first.

    Raises:
        Exception: what an object in the module raises if it cannot be copied.
    """

    def change(weight: torch.Tensor) -> torch.Tensor:
        tensor = weight.detach().to(
            dtype if weight.is_floating_point() else weight.dtype, copy=True
        )
        is_parameter = isinstance(weight, nn.Parameter)
        return nn.Parameter(tensor, requires_grad=False) if is_parameter else tensor

    return _copy(module, change).to(dtype)  # tensors elsewhere, which a module may move itself


def _copy(module: nn.Module, change: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    weights = {id(each): each for each in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, {key: change(each) for key, each in weights.items()})


def _replace(module: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    replacement = make(module)
    if replacement is not None:
        return replacement
    for name, child in module.named_children():
        other = _replace(child, make)
        if other is not child:
            setattr(module, name, other)
    return module
