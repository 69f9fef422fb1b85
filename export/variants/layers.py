"""Replaces layers of a module."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replaced(module: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Replace layers in place; return the module or its replacement.

    Args:
        module: itself and its layers at any depth are candidates.
        make: returns the replacement of a layer; None: keep it, and search inside it.
    """
    made = make(module)
    if made is not None:
        return made
    for name, child in module.named_children():
        other = replaced(child, make)
        if other is not child:
            setattr(module, name, other)
    return module
