"""What all commands share: parsers of values, how wrong arguments are reported, exit codes."""

from __future__ import annotations

import argparse
import math
from typing import NoReturn

USAGE_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130  # the shell's convention for SIGINT


class OneLineParser(argparse.ArgumentParser):
    """Exits with one sentence about a wrong argument, without the usage."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE_EXIT_CODE, f"torchlane: {message} (--help explains every option)\n")


def flag_of(name: str) -> str:
    """The flag of an option or a setting, by its name in Python."""
    return "--" + name.replace("_", "-")


def names(text: str) -> tuple[str, ...]:
    """Comma-separated names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


def count(text: str) -> int:
    """Parse a whole number, from 0."""
    return _whole(text, 0)


def positive(text: str) -> int:
    """Parse a whole number above 0."""
    return _whole(text, 1)


def positives(text: str) -> tuple[int, ...]:
    """Parse comma-separated whole numbers above 0."""
    return tuple(map(positive, names(text) or (text,)))


def amount(text: str) -> float:
    """Parse a number above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text!r}")
    return value


def points(text: str) -> float:
    """Parse hundredths, from 0 to 100."""
    return _up_to(text, 100, "0 to 100 points")


def share(text: str) -> float:
    """Parse a share, from 0 to 1."""
    return _up_to(text, 1, "a share from 0 to 1")


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"must be a whole number, at least {least}, got {text!r}")
    return int(text)


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
