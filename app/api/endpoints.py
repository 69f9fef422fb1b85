"""The endpoints of predictions, parsed once for each URL that clients use."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from app.errors import ModelNotFound

MAX_VERSION_DIGITS = 9  # of those in a repository
MAX_PATHS = 256  # remembered; bounded because clients choose them


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the path of a prediction asks for.

    Attributes:
        route: the path as it is documented, for the metrics.
        call: the class of its protocol below `app.api.calls.Call`.
        name: of the model; None: the default one.
        version: of the model, as it was written; None: the one that is loaded.
        many: whether bodies hold many items.
        top_k: how many of the highest scores; None: as the query says, if it does.
        query: the part of the query string that is still to be parsed.
    """

    route: str
    call: Callable[..., Any]
    name: str | None = None
    version: str | None = None
    many: bool = False
    top_k: int | None = None
    query: bytes = b""


class Paths(NamedTuple):
    """The URLs of a protocol's predictions.

    Attributes:
        pattern: of the whole URL.
        endpoint: makes the endpoint of a match.
    """

    pattern: re.Pattern[bytes]
    endpoint: Callable[[re.Match[bytes]], Endpoint]


class Endpoints:
    """Recognizes the requests that take the fast path.

    Args:
        paths: of every protocol.
    """

    def __init__(self, paths: Sequence[Paths]) -> None:
        self._paths = tuple(paths)
        self._known: dict[bytes, Endpoint] = {}

    def at(self, url: bytes) -> Endpoint | None:
        """The endpoint of a prediction URL; None: another path, or a query to be parsed."""
        endpoint = self._known.get(url)
        if endpoint is not None:
            return endpoint
        for pattern, make in self._paths:
            if match := pattern.fullmatch(url):
                endpoint = make(match)
                if len(self._known) < MAX_PATHS:
                    self._known[url] = endpoint
                return endpoint
        return None


def version_number(text: str | None) -> int | None:
    """The number of a version; None: none was named.

    Raises:
        ModelNotFound: if it is no whole number, or too long for a version.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MAX_VERSION_DIGITS:
        raise ModelNotFound("a version is a whole number; GET /models lists what there is")
    return int(text)
