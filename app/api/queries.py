"""Query parameters: one that has no effect is refused, because it was meant to have one."""

from __future__ import annotations

from collections.abc import Iterable

from app.errors import InvalidInput

MOST_SHOWN = 60  # characters of a name in an error


def check_query(given: Iterable[str], *known: str) -> None:
    """Check the names of query parameters.

    Raises:
        InvalidInput: for an unknown one, with those that the call has.
    """
    for name in given:
        if name not in known:
            there = f"only {', '.join(known)}" if known else "none"
            raise InvalidInput(
                f"unknown query parameter {name[:MOST_SHOWN]!r}: this call has {there}"
            )
