"""The endpoints of predictions, parsed once for each URL that clients use."""

from __future__ import annotations

import re
from dataclasses import dataclass

PATH = re.compile(
    rb"(?:/models/([A-Za-z0-9_-]+)(?:/versions/([0-9]{1,9}))?)?/(predict|batch-predict)"
    rb"(?:\?top_k=(0{0,9}[1-9][0-9]{0,8}))?"
)
MAX_PATHS = 256  # remembered; bounded because clients choose them


@dataclass(frozen=True, slots=True)
class Endpoint:
    """What the path of a prediction asks for.

    Attributes:
        route: the path as it is documented, for the metrics.
        many: whether bodies hold many items.
        name: of the model; None: the default one.
        version: of the model, as it was written; None: the one that is loaded.
        top_k: how many of the highest scores; None: as the query says, if it does.
        query: the part of the query string that is still to be parsed.
    """

    route: str
    many: bool
    name: str | None = None
    version: str | None = None
    top_k: int | None = None
    query: bytes = b""


class Endpoints:
    """Recognizes the requests that take the fast path."""

    def __init__(self) -> None:
        self._known: dict[bytes, Endpoint] = {}

    def at(self, url: bytes) -> Endpoint | None:
        """The endpoint of a prediction URL; None: another path, or a query beyond top_k."""
        endpoint = self._known.get(url)
        if endpoint is None and (match := PATH.fullmatch(url)):
            name, version, call, top_k = (each.decode("ascii") for each in match.groups(b""))
            prefix = "/models/{name}" * bool(name) + "/versions/{version}" * bool(version)
            many = call == "batch-predict"
            route = f"{prefix}/{call}"
            most = int(top_k) if top_k else None
            endpoint = Endpoint(route, many, name or None, version or None, most)
            if len(self._known) < MAX_PATHS:
                self._known[url] = endpoint
        return endpoint
