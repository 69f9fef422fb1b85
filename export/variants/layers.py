"""Replaces layers of a module."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn


def replaced(module: nn.Module, make: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Replace layers in place; returns the module, or what takes its place.

    Args:
        module: whose layers, at any depth, are looked at, itself included.
        make: the layer in the place of another one; None: keep it, and look into it.
    """
    made = make(module)
    if made is not None:
        return made
    for name, child in module.named_children():
        other = replaced(child, make)
        if other is not child:
            setattr(module, name, other)
    return module
