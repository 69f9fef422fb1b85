"""Types of command-line arguments that the load tests share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def above_zero(text: str) -> float:
    """Parse a finite number above zero."""
    return _parse(text, lambda value: value > 0, "a number above zero")


def at_least_one(text: str) -> int:
    """Parse a whole number from 1."""
    return int(_parse(text, lambda value: value >= 1 and value == int(value), "a whole number"))


def from_zero(text: str) -> int:
    """Parse a whole number from 0."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def share(text: str) -> float:
    """Parse a number from 0 to 1."""
    return _parse(text, lambda value: 0 <= value <= 1, "from 0 to 1")


def _parse(text: str, good: Callable[[float], bool], what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and good(value)):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
