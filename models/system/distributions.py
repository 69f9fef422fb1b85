"""Versions of installed distributions.

Only the standard library is needed, but its part that reads them takes 30 ms to import.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

UNKNOWN = "0+unknown"


def installed_version(distribution: str) -> str | None:
    """The version of a distribution; None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def own_version() -> str:
    """The version of this distribution; `UNKNOWN` in a checkout that is not installed."""
    return installed_version("torchlane") or UNKNOWN
