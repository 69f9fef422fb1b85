"""Packages of optional extras: one sentence says which are missing and what installs them."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any


class MissingExtra(Exception):
    """A command cannot start, because packages are not installed; the message names the extra."""


class NotInstalled(Exception):
    """A variant or a codec cannot be used without a package; the message says how to install it."""


def check_extra(subject: str, extra: str, packages: Sequence[str]) -> None:
    """Check that packages are installed, without importing them.

    Args:
        subject: what needs them; begins the message.
        extra: the extra of this project that installs them.
        packages: their names in Python.

    Raises:
        MissingExtra: if some are missing.
    """
    missing = [name for name in packages if not _is_installed(name)]
    if missing:
        raise MissingExtra(
            f"{subject} needs packages that are not installed ({', '.join(missing)}): "
            f"pip install 'torchlane[{extra}]'"
        )


def import_package(module: str, name: str, extra: str) -> Any:
    """Import an optional package, which may take long.

    Args:
        module: its name in Python.
        name: its name for people.
        extra: the extra of this project that installs it.

    Raises:
        NotInstalled: if it is missing.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotInstalled(f"it needs {name}: pip install 'torchlane[{extra}]'") from error


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
