"""The user's home, which the user of a container may not have."""

from __future__ import annotations

from pathlib import Path


def home_folder() -> Path | None:
    """The user's home; None: HOME is not set, and the system does not know the user."""
    try:
        return Path.home()
    except RuntimeError:
        return None
