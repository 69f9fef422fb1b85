"""Scope checks for FastAPI routes; predictions are checked in `calls.py`, on both paths.

    @app.post("/admin/reload")
    async def reload(caller: Admin) -> ...:

`Admin` rejects every caller while no API key is configured. For the `admin_paths` of a dialect the
middleware checks before a body is read; the dependency also protects routes elsewhere.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from app.access.entries import ADMIN, METRICS, PREDICT
from app.access.guard import Caller, Guard

CALLER = "torchlane.caller"  # key in the ASGI scope: the caller admitted as an administrator

# These describe the credentials in the OpenAPI document; the guard checks them.
BEARER = HTTPBearer(scheme_name="bearer", auto_error=False, description="An API key")
API_KEY = APIKeyHeader(
    name="X-API-Key", scheme_name="api_key", auto_error=False, description="The same API key"
)
SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"api_key": []}]  # either is enough
SECURITY_SCHEMES = {
    each.scheme_name: each.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    for each in (BEARER, API_KEY)
}


def _admin(
    request: Request,
    bearer: Annotated[HTTPAuthorizationCredentials | None, Depends(BEARER)],
    key: Annotated[str | None, Depends(API_KEY)],
) -> Caller:
    known = request.scope.get(CALLER)
    return known if isinstance(known, Caller) else _admitted(request, ADMIN)


def _reader(request: Request) -> Caller:
    return _admitted(request, PREDICT)


def _scraper(request: Request) -> Caller:
    return _admitted(request, METRICS)


def _admitted(request: Request, scope: str) -> Caller:
    guard: Guard = request.app.state.guard
    return guard.admit(dict(request.scope["headers"]), scope)


Admin = Annotated[Caller, Depends(_admin)]
Reader = Depends(_reader)
Scraper = Depends(_scraper)
