"""Torchlane: exports PyTorch models to verified artifacts and serves them.

`create_app` builds the server as a FastAPI application, for programs with routes of their own; see
docs/embedding.md. `Handler`, with the classes that belong to it, is for your own Python around
served models. Importing this package imports neither torch nor the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from app.embedding import create_app
    from torchlane.handlers.api import CallFailed, Handler, Request, Response
    from torchlane.handlers.content import InvalidInput

    __version__: str

__all__ = [
    "CallFailed",
    "Handler",
    "InvalidInput",
    "Request",
    "Response",
    "__version__",
    "create_app",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from models.system.distributions import own_version  # noqa: PLC0415 # takes 30 ms

        return own_version()
    if name == "create_app":
        from app.embedding import create_app  # noqa: PLC0415 # imports torch

        return create_app
    if name in __all__:
        from torchlane.handlers import api, content  # noqa: PLC0415 # only handlers need them

        return getattr(content if name == "InvalidInput" else api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
