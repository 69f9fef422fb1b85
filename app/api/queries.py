"""Query parameters: one that has no effect is refused, because it was meant to have one."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import parse_qsl

from fastapi import Depends, Request

from app.errors import InvalidInput, UnknownParameter
from models.choices import did_you_mean

MAX_PARAMETERS = 100  # of a query: parsing more would block the event loop
MOST_SHOWN = 60  # characters of a name in an error


def parameters_of(query: bytes) -> list[tuple[str, str]]:
    """The names and values of a query string.

    Raises:
        InvalidInput: if there are too many.
    """
    try:
        return parse_qsl(query.decode("latin-1"), True, max_num_fields=MAX_PARAMETERS)
    except ValueError as error:
        raise InvalidInput(f"the URL has more than {MAX_PARAMETERS} query parameters") from error


def check_query(given: Iterable[str], *known: str) -> None:
    """Check the names of query parameters.

    Raises:
        UnknownParameter: for an unknown one, with those that the call has.
    """
    for name in given:
        if name not in known:
            shown = name[:MOST_SHOWN]
            there = f"only {', '.join(known)}" if known else "none"
            hint = did_you_mean(shown.lower().replace("-", "_"), known, "")
            told = f"unknown query parameter {shown!r}: this call has {there}"
            raise UnknownParameter(f"{told}; {hint}" if hint else told)


def _without_query(request: Request) -> None:
    if request.scope["query_string"]:
        check_query(name for name, _ in parameters_of(request.scope["query_string"]))


NoQuery = Depends(_without_query)  # for routes without parameters; put it after the caller's check
