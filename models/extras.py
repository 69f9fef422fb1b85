"""Packages of optional extras: one sentence says which are missing and what installs them."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec


class MissingExtra(Exception):
    """Packages are not installed; the message names them and the extra."""


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


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False
