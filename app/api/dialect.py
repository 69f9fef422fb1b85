"""A protocol as one object, and what a request's path says about its protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from app.api.endpoints import Endpoint, Endpoints
from app.api.errors import ErrorForm
from app.registry.loaded_models import LoadedModel

Docs = dict[str, Any]  # a part of the OpenAPI document


@dataclass(frozen=True, slots=True)
class Operations:
    """A protocol's part of the OpenAPI document.

    Attributes:
        tag: of its calls.
        error_schema: the name of its errors' schema.
        of: the arguments of an `APIRoute` for each method of a prediction endpoint.
        schemas: schemas that these refer to, by name.
        for_default: makes the document exact for the default model; the number is the maximum of
            items of a request.
    """

    tag: str
    error_schema: str
    of: Callable[[Endpoint], Sequence[Docs]]
    schemas: Mapping[str, Docs]
    for_default: Callable[[Docs, LoadedModel, int], None] = lambda *_: None


@dataclass(frozen=True, slots=True)
class Dialect:
    """A protocol over HTTP.

    Attributes:
        endpoints: makes its prediction endpoints, once for each application.
        errors: how it writes errors.
        docs: its part of the OpenAPI document.
        roots: the first segments of its paths, whose errors have its form.
        add_routes: adds its other calls to the application; gets the `Service`.
        probes: paths that are called by IP address and reveal nothing.
        admin_paths: these, and all paths below them, need the admin scope.
    """

    endpoints: Callable[[], Sequence[Endpoint]]
    errors: ErrorForm
    docs: Operations
    roots: tuple[str, ...]
    add_routes: Callable[[FastAPI, Any], None] = lambda *_: None
    probes: tuple[str, ...] = ()
    admin_paths: tuple[str, ...] = ()


class Dialects:
    """The protocols of an application.

    Args:
        dialects: the first one also has the paths that belong to none.

    Attributes:
        endpoints: the prediction endpoints of all protocols.
        served: each protocol with its prediction endpoints.
        probes: see `Dialect`.
    """

    def __init__(self, dialects: Sequence[Dialect]) -> None:
        self.served = [(each, each.endpoints()) for each in dialects]
        self.endpoints = Endpoints([each for _, many in self.served for each in many])
        self.probes = frozenset(path for each in dialects for path in each.probes)
        self._by_route = {each.route: dialect for dialect, many in self.served for each in many}
        self._first = dialects[0]
        self._by_root = {root: each for each in dialects for root in each.roots}
        self._admin = tuple(path for each in dialects for path in each.admin_paths)

    def of_route(self, route: str) -> Dialect:
        """The protocol of a route as documented: of its endpoint, else of its path."""
        return self._by_route.get(route) or self.of(route)

    def of(self, path: str) -> Dialect:
        """The protocol of a path, which may be unknown."""
        return self._by_root.get(path[1:].partition("/")[0], self._first)

    def needs_admin(self, path: str) -> bool:
        """Whether a path needs the admin scope, even if no route matches it."""
        return any(path == each or path.startswith(f"{each}/") for each in self._admin)
