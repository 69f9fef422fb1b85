"""Who may call what, for routes of FastAPI; predictions are guarded in `calls.py`, both ways.

    @app.post("/admin/reload")
    async def reload(caller: Admin) -> ...:

`Admin` lets nobody in while no API key is configured. Below /admin/ the middleware has asked before
any body is read; a route that stands elsewhere is guarded by the dependency all the same.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import APIKeyHeader, HTTPAuthorizationCredentials, HTTPBearer

from app.access.entries import ADMIN, METRICS, PREDICT
from app.access.guard import Caller, Guard

ADMIN_PREFIX = "/admin"
CALLER = "torchlane.caller"  # key in the ASGI scope: whom the middleware has let in as an admin

# They tell the OpenAPI document what to send; whether it is right the guard decides.
BEARER = HTTPBearer(scheme_name="bearer", auto_error=False, description="An API key")
API_KEY = APIKeyHeader(
    name="X-API-Key", scheme_name="api_key", auto_error=False, description="The same API key"
)
SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"api_key": []}]  # one of them will do
SECURITY_SCHEMES = {
    each.scheme_name: each.model.model_dump(mode="json", by_alias=True, exclude_none=True)
    for each in (BEARER, API_KEY)
}


def is_admin_path(path: str) -> bool:
    """Whether whoever asks for it must be an admin, whatever route there is."""
    return path == ADMIN_PREFIX or path.startswith(f"{ADMIN_PREFIX}/")


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
    return guard.admit(request.scope["headers"], scope)


Admin = Annotated[Caller, Depends(_admin)]
Reader = Depends(_reader)
Scraper = Depends(_scraper)
