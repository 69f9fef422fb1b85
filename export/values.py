"""Parsers of option values, for argparse."""

from __future__ import annotations

import argparse
import math


def names(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least 1, got {text!r}")
    return int(text)


def amount(text: str) -> float:
    """Parse a number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def positives(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers above 0."""
    return tuple(map(positive, names(text) or (text,)))


def points(text: str) -> float:
    """Parse hundredths, from 0 to 100."""
    return _up_to(text, 100, "0 to 100 points")


def share(text: str) -> float:
    """Parse a share, from 0 to 1."""
    return _up_to(text, 1, "a share from 0 to 1")


def _up_to(text: str, most: float, what: str) -> float:
    value = _number(text)
    if not 0 <= value <= most:
        raise argparse.ArgumentTypeError(f"must be {what}, got {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
