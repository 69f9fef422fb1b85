"""The prediction endpoints, parsed once for each URL that clients use."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.errors import ModelNotFound

MAX_VERSION_DIGITS = 9  # of versions in a repository
TOP_K = "top_k"  # query parameters
PICTURES = "pictures"
PARTIAL = "partial"
MAX_PATHS = 256  # remembered paths; bounded because clients choose them


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the path of a prediction requests.

    Attributes:
        route: the path as documented, for the metrics.
        call: the protocol's subclass of `app.api.calls.Call`.
        name: the model's name; None for the default model.
        version: the model's version, as written; None for the loaded version.
        many: whether bodies hold many items.
        top_k: how many of the highest scores; None: as the query says, if it does.
        query: the part of the query string that is not yet parsed.
        parameters: the names of the query parameters that the protocol has.
    """

    route: str
    call: Callable[..., Any]
    name: str | None = None
    version: str | None = None
    many: bool = False
    top_k: int | None = None
    query: bytes = b""
    parameters: tuple[str, ...] = ()


class Endpoints:
    """Recognizes requests for the fast path.

    Args:
        endpoints: one for each route, without a model.
    """

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._routes = [(_pattern(each), each) for each in endpoints]
        self._known: dict[bytes, Endpoint] = {}

    def at(self, url: bytes) -> Endpoint | None:
        """The endpoint of a prediction URL; None for another path, or a query to be parsed."""
        endpoint = self._known.get(url)
        if endpoint is not None:
            return endpoint
        for pattern, each in self._routes:
            if match := pattern.fullmatch(url):
                found = {key: text.decode() for key, text in match.groupdict().items() if text}
                name, version, top_k = map(found.get, ("name", "version", TOP_K))
                most = int(top_k) if top_k else None
                endpoint = Endpoint(each.route, each.call, name, version, each.many, most)
                if len(self._known) < MAX_PATHS:
                    self._known[url] = endpoint
                return endpoint
        return None


def _pattern(endpoint: Endpoint) -> re.Pattern[bytes]:
    """The pattern of an endpoint's URLs; a query with anything but a plain top_k is not one."""
    path = re.escape(endpoint.route).replace(r"\{name\}", "(?P<name>[A-Za-z0-9_-]+)")
    path = path.replace(r"\{version\}", f"(?P<version>[0-9]{{1,{MAX_VERSION_DIGITS}}})")
    if TOP_K in endpoint.parameters:
        path += rf"(?:\?{TOP_K}=(?P<top_k>0{{0,9}}[1-9][0-9]{{0,8}}))?"
    return re.compile(path.encode())


def version_number(text: str | None) -> int | None:
    """The number of a version; None if no version was named.

    Raises:
        ModelNotFound: if it is not a whole number, or is too long for a version.
    """
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > MAX_VERSION_DIGITS:
        raise ModelNotFound("a version must be a whole number; GET /models lists the versions")
    return int(text)
