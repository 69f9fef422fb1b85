"""Version numbers: the names of the folders in a model's folder that are versions."""

from __future__ import annotations

import re

MAX_VERSION = 999_999_999
VERSION = re.compile(r"[1-9][0-9]{0,8}")
RULE = "a version is a number from 1 to 999999999 without leading zeros"


def version_of(name: str) -> int | None:
    """Return the version that a folder's name stands for; None: it is not a version.

    `01`, `v2`, `1.0`, digits of other scripts and longer numbers are not versions.
    """
    return int(name) if VERSION.fullmatch(name) else None
